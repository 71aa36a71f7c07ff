"""Who is behind by torch's own counters: flight records, and the watchdog's lines in logs. Pure.

Both are written at a time-out, so they say nothing of what moves. Unlike RAS they know the call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.jobs.processes import fold_ranks
from clusterctl.stacks.clues import Entry, parse_counters, read_dump
from clusterctl.stacks.clues import Group as Entries
from clusterctl.stacks.counts.behind import Difference, Lag, find_difference
from clusterctl.stacks.counts.launched import Group, Launched, Member
from clusterctl.stacks.model import JobSnapshot

COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Behind:
    """The ranks that a source points at; `why` is about them: never joined number 5 of group 0."""

    source: str
    ranks: tuple[int, ...]
    why: str
    is_desync: bool = False
    why_partial: str = ""  # why they may not be the first cause

    @property
    def text(self) -> str:
        return f"rank {fold_ranks(self.ranks)} {self.why}"

    @property
    def is_partial(self) -> bool:
        return bool(self.why_partial)


@dataclass(frozen=True, slots=True)
class Recorded:
    behind: Behind | None = None
    conflict: str = ""  # between the sources


def read_recorded(snapshot: JobSnapshot) -> Recorded:
    dumps = _dumps(snapshot)
    calls = {
        (name, rank, entry.sequence): entry
        for rank, groups in dumps.items()
        for name, group in groups.items()
        for entry in group.values()
    }
    numbers: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, groups in dumps.items():
        for name, group in groups.items():
            numbers[name][rank] = max(group)
    flight = _judge("flight recorder", numbers, snapshot, calls)
    watchdog = _judge("NCCL watchdog", _logged(snapshot), snapshot, {})
    if flight and watchdog and not set(flight.ranks) & set(watchdog.ranks):
        flight_ranks, logged = fold_ranks(flight.ranks), fold_ranks(watchdog.ranks)
        conflict = f"flight records point at rank {flight_ranks}, the watchdog's lines at {logged}"
        return Recorded(flight, conflict)
    return Recorded(flight or watchdog)


def _dumps(snapshot: JobSnapshot) -> dict[int, Mapping[str, Entries]]:
    read = {
        rank: read_dump(packed) for node in snapshot.nodes for rank, packed in node.flight.items()
    }
    return {rank: dump for rank, dump in read.items() if not isinstance(dump, str)}


def _logged(snapshot: JobSnapshot) -> dict[str, dict[int, int]]:
    """The last number that each rank enqueued, by process group."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for node in snapshot.nodes:
        for rank, lines in node.logs.items():
            for one in parse_counters(lines):
                found[one.group][rank] = one.enqueued
    return found


def _judge(
    source: str,
    numbers: Mapping[str, Mapping[int, int]],
    snapshot: JobSnapshot,
    calls: Mapping[tuple[str, int, int], Entry],
) -> Behind | None:
    homes = {p.rank: p.node for p in snapshot.alive}
    groups = tuple(
        Group(
            name,
            len(ranks),
            {Member(r, r, homes.get(r)): {COLLECTIVE: number} for r, number in ranks.items()},
        )
        for name, ranks in numbers.items()
    )
    found = find_difference(Launched(groups))
    if found is None or not found.members:
        return None
    ranks = tuple(sorted(member.rank for member in found.members if member.rank is not None))
    everybody = set().union(*numbers.values())
    without = sorted(rank for rank in homes if rank is not None and rank not in everybody)
    why_partial = ""
    if without:
        what = "flight record" if calls else "watchdog's line"
        why_partial = f"there is no {what} of rank {fold_ranks(without)}, which may be behind, too"
    return Behind(source, ranks, _why(found, calls), found.lag != Lag.BEHIND, why_partial)


def _why(found: Difference, calls: Mapping[tuple[str, int, int], Entry]) -> str:
    name = found.group.name
    lowest = min(counts[COLLECTIVE] for counts in found.group.counts.values())
    number = lowest + 1
    call = next(
        (entry for (group, _, at), entry in calls.items() if (group, at) == (name, number)), None
    )
    what = f"number {number} of group {name}"
    if call:
        where = f" at {call.caller}" if call.caller else ""
        what = f"{call.operation} number {number} of group {name}{where}"
    if found.lag == Lag.BEHIND:
        return f"never joined {what}; {found.others} others have and wait"
    return f"joined {what}, and the other {found.others} did not"
