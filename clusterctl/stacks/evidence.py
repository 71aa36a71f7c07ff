"""Evidence beside the stacks: NCCL's watchdog, flight recorders, Xid and kernel logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from checks.facts import Unknown
from checks.parsers.kernel_log import read_events
from checks.reference.xid_codes import grade
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks.flight import compare, read_dump
from clusterctl.stacks.model import JobSnapshot, NodeView

Logs = Sequence[tuple[int, list[str]]]  # (rank, its lines)


@dataclass(frozen=True, slots=True)
class Clue:
    """One piece of evidence; `source` is log, flight recorder or kernel."""

    source: str
    text: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class Timeout(NamedTuple):
    """A collective that torch's watchdog gave up on."""

    rank: int
    sequence: int
    operation: str
    timeout_ms: int


_WORK = re.compile(
    r"\[Rank (?P<rank>\d+)\].*?Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, .*?)?(?:, Timeout\(ms\)=(?P<limit>\d+))\)"
)
_COUNTERS = re.compile(
    r"\[PG .*?Rank \d+\].*?Timeout at NCCL work: \d+, "
    r"last enqueued NCCL work: -?\d+, last completed NCCL work: (?P<done>-?\d+)"
)
_GLOO = re.compile(r"gloo.*?(?:Timed out waiting \d+ms|Connection (?:closed|reset) by peer)")
_NET = re.compile(r"NCCL WARN (?P<text>.*?NET.*?(?:completion|error).*)")


def parse_watchdog(lines: Iterable[str]) -> list[Timeout]:
    """Timeouts in a log, of every version of torch's text; other lines are ignored."""
    found = [work.groups() for work in map(_WORK.search, lines) if work]
    return [Timeout(int(rank), int(seq), op, int(limit)) for rank, seq, op, limit in found]


def parse_completed(lines: Iterable[str]) -> list[int]:
    """Numbers of the last completed collective, from `… last completed …` lines."""
    return [int(found["done"]) for found in map(_COUNTERS.search, lines) if found]


def clues(snapshot: JobSnapshot) -> list[Clue]:
    """All evidence, the most important first."""
    logs = [(rank, lines) for node in snapshot.nodes for rank, lines in node.logs.items()]
    logged = [*_watchdog(logs), *_gloo(logs), *_network(logs)]
    return [*_flight(snapshot), *logged, *_kernel(snapshot.nodes)]


def _flight(snapshot: JobSnapshot) -> list[Clue]:
    dumps, unread = {}, []
    for node in snapshot.nodes:
        for rank, packed in node.flight.items():
            dump = read_dump(packed)
            if isinstance(dump, str):
                text = f"rank {rank}: {dump}"
                unread.append(Clue("flight recorder", text, (rank,), (node.name,)))
            else:
                dumps[rank] = dump
    world = snapshot.world or (max(dumps) + 1 if dumps else 0)
    compared = compare(dumps, world)
    return [Clue("flight recorder", text, tuple(ranks)) for text, ranks in compared] + unread


def _watchdog(logs: Logs) -> list[Clue]:
    groups: dict[tuple[int, str], list[Timeout]] = {}
    completed: dict[int, int] = {}
    for rank, lines in logs:
        for one in parse_watchdog(lines):
            groups.setdefault((one.sequence, one.operation), []).append(one)
        for number in parse_completed(lines):
            completed[rank] = number
    found = []
    for (sequence, operation), timeouts in sorted(groups.items()):
        ranks = sorted({one.rank for one in timeouts})
        limit_ms = next((one.timeout_ms for one in timeouts if one.timeout_ms), None)
        after = f" after {limit_ms / 1000:g} s" if limit_ms else ""
        what = f"{operation} number {sequence} timed out{after}"
        text = f"NCCL watchdog: {what} on rank {fold_ranks(ranks)}"
        found.append(Clue("log", text, tuple(ranks)))
    if completed:
        lowest = min(completed.values())
        behind = [rank for rank, number in completed.items() if number == lowest]
        if len(behind) < len(completed):
            text = f"rank {fold_ranks(behind)} completed the fewest collectives ({lowest})"
            found.append(Clue("log", text, tuple(sorted(behind))))
    return found


def _gloo(logs: Logs) -> list[Clue]:
    ranks = sorted(rank for rank, lines in logs if any(map(_GLOO.search, lines)))
    text = f"gloo lost or waited too long for a peer on rank {fold_ranks(ranks)}"
    return [Clue("log", text, tuple(ranks))] if ranks else []


def _network(logs: Logs) -> list[Clue]:
    found: dict[str, set[int]] = {}
    for rank, lines in logs:
        for warning in filter(None, map(_NET.search, lines)):
            found.setdefault(warning["text"][:160], set()).add(rank)
    return [
        Clue("log", f"rank {fold_ranks(ranks)}: {text}", tuple(sorted(ranks)))
        for text, ranks in found.items()
    ]


def _kernel(nodes: Sequence[NodeView]) -> list[Clue]:
    """What the nodes' kernels logged in the last hour, equal lines of many nodes as one."""
    names: dict[str, dict[str, bool]] = {}
    ages: dict[str, float] = {}
    for node in nodes:
        for age_s, line in node.kernel:
            for event in read_events(line, Unknown("not asked"), Unknown("not asked")):
                text = f"{event.kind} {event.subject}".strip()
                if event.kind == "xid" and event.xid is not None:
                    meaning = grade(event.xid, event.line).meaning
                    text = f"Xid {event.xid} on {event.subject}: {meaning}"
                names.setdefault(text, {})[node.name] = True
                ages[text] = min(age_s, ages.get(text, age_s))
    found = []
    for text, age_s in sorted(ages.items(), key=lambda item: item[1]):
        where = tuple(names[text])
        ago = f"{age_s / 60:.0f} min ago" if age_s >= 90 else f"{age_s:.0f} s ago"
        found.append(Clue("kernel", f"{fold(list(where))}: {text} ({ago})", nodes=where))
    for node in nodes:
        if node.kernel_cut_s is not None:
            read = f"only the last {node.kernel_cut_s / 60:.0f} min of it were read"
            text = f"{node.name}: its log is longer than 1 MiB, {read}"
            found.append(Clue("kernel", text, nodes=(node.name,)))
    return found
