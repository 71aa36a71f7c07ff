"""Evidence beside the stacks: NCCL's watchdog, flight recorders, Xid and kernel logs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from checks import units
from checks.facts import NOT_ASKED
from checks.parsers.kernel_log import read_events
from checks.reference.xid_codes import grade
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold, grouped
from clusterctl.stacks.model import JobSnapshot, NodeView

Logs = Sequence[tuple[int, list[str]]]  # (rank, its lines)


@dataclass(frozen=True, slots=True)
class Clue:
    """One piece of evidence; `source` is log, flight recorder or kernel."""

    source: str
    text: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


class Timeout(NamedTuple):
    rank: int
    sequence: int
    operation: str
    timeout_ms: int


# A line of a log may hold the begin of a sentence a thousand times, and a report has 1,500 lines:
# the rare part is searched for first, and only then whose it is.
_RANK = re.compile(r"\[Rank (\d{1,9})\]", re.IGNORECASE)
_WORK = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,60})(?:, [^)]{0,400}?)?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d{1,18}))\)",
    re.IGNORECASE,
)
_GROUP = re.compile(r"\[PG ([^\[\]]{1,200}) Rank \d{1,9}\]", re.IGNORECASE)
_COUNTERS = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<asked>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<done>-?\d{1,18})",
    re.IGNORECASE,
)
_DUMP = re.compile(
    r"Received a dump signal due to a collective timeout from\s{1,4}"
    r"(?:this local rank|rank (?P<other>\d{1,9}))",
    re.IGNORECASE,
)
_GLOO = re.compile(r"Timed out waiting \d{1,18}ms|Connection (?:closed|reset) by")
_WARNED = re.compile(r"NCCL WARN (?P<text>.+)")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def parse_watchdog(lines: Iterable[str]) -> list[Timeout]:
    """Timeouts in a log, of every version of torch's text; other lines are ignored."""
    found = []
    for line in lines:
        work = _WORK.search(line)
        rank = _before(_RANK, line, work)
        if work and rank is not None:
            found.append(Timeout(int(rank), int(work["seq"]), work["op"], int(work["limit"])))
    return found


def _before(mark: re.Pattern[str], line: str, found: re.Match[str] | None) -> str | None:
    """What the first mark says that stands before `found` in its line."""
    first = mark.search(line, 0, found.start()) if found else None
    return first[1] if first else None


class Enqueued(NamedTuple):
    """A watchdog's counters of a process group, at a time-out."""

    group: str  # ID 0 PG GUID 0(default_pg)
    enqueued: int
    completed: int


def parse_counters(lines: Iterable[str]) -> list[Enqueued]:
    found = []
    for line in lines:
        counts = _COUNTERS.search(line)
        group = _before(_GROUP, line, counts)
        if counts and group is not None:
            found.append(Enqueued(group, int(counts["asked"]), int(counts["done"])))
    return found


def clues(snapshot: JobSnapshot) -> list[Clue]:
    """All evidence, the most important first."""
    logs = [(rank, lines) for node in snapshot.nodes for rank, lines in node.logs.items()]
    logged = [*watchdog(logs), *_gloo(logs), *network(logs)]
    return [*_flight(snapshot), *logged, *_kernel(snapshot.nodes)]


def _flight(snapshot: JobSnapshot) -> list[Clue]:
    """torch's flight records: which rank is behind, or in another collective."""
    dumps, unread = {}, []
    for node in snapshot.nodes:
        for rank, packed in node.flight.items():
            dump = read_dump(packed)
            if isinstance(dump, str):
                why = f"rank {rank}: {dump}"
                unread.append(Clue("flight recorder", why, (rank,), (node.name,)))
            else:
                dumps[rank] = dump
    compared = compare(dumps, snapshot.world or max(dumps, default=-1) + 1)
    return [Clue("flight recorder", text, tuple(ranks)) for text, ranks in compared] + unread


def watchdog(logs: Logs, *, are_own: bool = False) -> list[Clue]:
    """What NCCL gave up waiting for, and which rank had done least.

    `are_own`: each log has lines of its rank alone, whose number in the text may be that in a
    smaller process group.
    """
    seen = [
        (rank if are_own else one.rank, one)
        for rank, lines in logs
        for one in parse_watchdog(lines)
    ]
    groups = grouped(((one.sequence, one.operation), (rank, one)) for rank, one in seen)
    completed: dict[str, dict[int, int]] = {}
    for rank, lines in logs:
        for counted in parse_counters(lines):
            completed.setdefault(_group_of(counted.group), {})[rank] = counted.completed
    found = list(_dump_signals(logs))
    for (sequence, operation), timeouts in sorted(groups.items()):
        ranks = sorted({rank for rank, _ in timeouts})
        limit_ms = next((one.timeout_ms for _, one in timeouts if one.timeout_ms), None)
        after = f" after {units.duration(limit_ms / 1000)}" if limit_ms else ""
        what = f"{operation} number {sequence} timed out{after}"
        text = f"NCCL watchdog: {what} on rank {fold_ranks(ranks)}"
        found.append(Clue("log", text, tuple(ranks)))
    for counts in completed.values():  # those of different groups say nothing of each other
        lowest = min(counts.values())
        behind = [rank for rank, number in counts.items() if number == lowest]
        if len(behind) < len(counts):
            text = f"rank {fold_ranks(behind)} completed the fewest collectives ({lowest})"
            found.append(Clue("log", text, tuple(sorted(behind))))
    return found


def _group_of(text: str) -> str:
    """What all ranks of a group call it; of `ID 11 PG GUID 119` the first number is its own."""
    return text.partition("GUID ")[2] or text


def _dump_signals(logs: Logs) -> Iterator[Clue]:
    """Who gave up a collective first, by what torch's heartbeat monitors told each other."""
    told: dict[int, list[int]] = {}
    for rank, lines in logs:
        for signal in filter(None, map(_DUMP.search, lines)):
            source = rank if signal["other"] is None else int(signal["other"])
            told.setdefault(source, []).append(rank)
    for source, ranks in sorted(told.items()):
        others = sorted(set(ranks) - {source})
        to = f", as rank {fold_ranks(others)} heard" if others else ""
        text = f"NCCL watchdog: rank {source} gave up a collective and asked all to dump{to}"
        yield Clue("log", text, (source,))


def _gloo(logs: Logs) -> list[Clue]:
    ranks = sorted(rank for rank, lines in logs if any(map(_lost_by_gloo, lines)))
    text = f"gloo lost or waited too long for a peer on rank {fold_ranks(ranks)}"
    return [Clue("log", text, tuple(ranks))] if ranks else []


def _lost_by_gloo(line: str) -> bool:
    found = _GLOO.search(line)
    return found is not None and "gloo" in line[: found.start()]


def network(logs: Logs) -> list[Clue]:
    """All warnings of NCCL; those of many ranks that differ in numbers alone as one."""
    warned: dict[str, tuple[str, list[int]]] = {}
    for rank, lines in logs:
        for warning in filter(None, map(_WARNED.search, lines)):
            text = warning["text"].strip()[:160]
            warned.setdefault(_NUMBERS.sub("#", text), (text, []))[1].append(rank)
    return [
        Clue("log", f"rank {fold_ranks(sorted(set(ranks)))}: {text}", tuple(sorted(set(ranks))))
        for text, ranks in warned.values()
    ]


def _kernel(nodes: Sequence[NodeView]) -> list[Clue]:
    """What the nodes' kernels logged in the last hour, equal lines of many nodes as one."""
    events = []
    for node in nodes:
        for age_s, line in node.kernel:
            for event in read_events(line, NOT_ASKED, NOT_ASKED):
                text = f"{event.kind} {event.subject}".strip()
                if event.kind == "xid" and event.xid is not None:
                    meaning = grade(event.xid, event.line).meaning
                    text = f"Xid {event.xid} on {event.subject}: {meaning}"
                events.append((text, (age_s, node.name)))
    found = []
    for text, seen in sorted(grouped(events).items(), key=lambda item: min(item[1])[0]):
        where, age_s = tuple(dict.fromkeys(name for _, name in seen)), min(seen)[0]
        found.append(
            Clue("kernel", f"{fold(list(where))}: {text} ({units.ago(age_s)})", nodes=where)
        )
    for node in nodes:
        if node.kernel_cut_s is not None:
            read = f"only the last {units.duration(node.kernel_cut_s)} of it were read"
            text = f"{node.name}: its log is longer than 1 MiB, {read}"
            found.append(Clue("kernel", text, nodes=(node.name,)))
    return found


class Entry(NamedTuple):
    """One collective as a rank recorded it."""

    sequence: int
    operation: str  # all_reduce, without the backend's name
    sizes: str
    dtypes: str
    done: bool
    caller: str  # innermost frame outside of torch, `step train.py:17`


Group = dict[int, Entry]  # the newest entries of a process group, by number


def read_dump(sent: Mapping[str, Any]) -> dict[str, Group] | str:
    """The groups of a record as the payload sent it, by name; or why it cannot be read."""
    if sent.get("error"):
        return f"{sent.get('path')}: {sent['error']}"
    groups: dict[str, Group] = {}
    for row in sent.get("entries", ()):
        try:
            entry, name = _entry(row), row.get("process_group")
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError):
            continue  # of a version that we do not know
        if isinstance(name, list | tuple) and name:
            name = " ".join(str(word) for word in name if word != "undefined")
        groups.setdefault(str(name), {})[entry.sequence] = entry
    return groups


def _entry(row: Mapping[str, Any]) -> Entry:
    caller = ""
    for frame in row["frames"]:  # at most one
        caller = f"{frame['name']} {str(frame['filename']).rpartition('/')[2]}:{frame['line']}"
    sequence, operation = int(row["collective_seq_id"]), str(row["profiling_name"])
    sizes, dtypes = str(row.get("input_sizes")), str(row.get("input_dtypes"))
    done = bool(row.get("retired")) or row.get("state") == "completed"
    return Entry(sequence, operation.rpartition(":")[2], sizes, dtypes, done, caller)


def compare(dumps: Mapping[int, Mapping[str, Group]], world: int) -> list[tuple[str, list[int]]]:
    """(sentence, ranks it is about): which are behind, and which are in another collective."""
    found: list[tuple[str, list[int]]] = []
    for name in sorted({name for groups in dumps.values() for name in groups}):
        members = {rank: groups[name] for rank, groups in dumps.items() if name in groups}
        found += _compare_group(name, members)
    without = [rank for rank in range(world) if rank not in dumps]
    if without and len(without) < world:
        text = f"no record of rank {fold_ranks(without)}: it may be the one that hangs"
        found.append((text, without))
    return found


def _compare_group(name: str, members: Mapping[int, Group]) -> list[tuple[str, list[int]]]:
    newest = {rank: max(group) for rank, group in members.items()}
    highest, lowest = max(newest.values()), min(newest.values())
    if lowest < highest:
        behind = sorted(rank for rank, sequence in newest.items() if sequence == lowest)
        ahead = next(rank for rank, sequence in newest.items() if sequence == highest)
        last, wanted = members[behind[0]][lowest], members[ahead].get(lowest + 1)
        what = f"{wanted.operation} at {wanted.caller}" if wanted else "the next collective"
        missed = f"rank {fold_ranks(behind)} never joined number {lowest + 1} of group {name}"
        return [(f"{missed} ({what}); its last was {last.operation} at {last.caller}", behind)]
    # All are at the same number: is it the same collective?
    completed = [max((n for n, e in one.items() if e.done), default=0) for one in members.values()]
    recorded = {number for group in members.values() for number in group}
    for sequence in sorted(number for number in recorded if number >= min(completed)):
        entries = {rank: group[sequence] for rank, group in members.items() if sequence in group}
        calls = {rank: (e.operation, e.sizes, e.dtypes) for rank, e in entries.items()}
        (usual, count), *others = Counter(calls.values()).most_common()
        if others:
            odd = sorted(rank for rank, call in calls.items() if call != usual)
            one = entries[odd[0]]
            most = next(entries[rank] for rank, call in calls.items() if call == usual)
            here = f"{one.operation} {one.sizes} at {one.caller} on rank {fold_ranks(odd)}"
            there = f"{most.operation} {most.sizes} at {most.caller} on {count} others"
            return [(f"number {sequence} of group {name} is {here}, but {there}", odd)]
    if max(completed) >= highest:
        return []
    operation = next(iter(members.values()))[highest].operation
    joined = f"have joined number {highest} of group {name} ({operation})"
    cause = "the cause is the network or a device, not a rank"
    text = f"all {len(members)} ranks {joined}, and none has finished it: {cause}"
    return [(text, sorted(members))]
