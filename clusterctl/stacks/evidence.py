"""Evidence beside the stacks: NCCL's watchdog, flight recorders, Xid and kernel logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from checks.facts import Unknown
from checks.parsers.kernel_log import read_events
from checks.reference.xid_codes import grade
from clusterctl.jobs.processes import fold_ranks
from clusterctl.nodes import fold
from clusterctl.stacks.flight import compare, read_dump
from clusterctl.stacks.model import JobSnapshot


@dataclass(frozen=True, slots=True)
class Clue:
    """One piece of evidence; `source` is log, flight recorder or kernel."""

    source: str
    text: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "source": self.source,
            "text": self.text,
            "ranks": list(self.ranks),
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True, slots=True)
class Timeout:
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
    r"\[PG .*?Rank (?P<rank>\d+)\].*?Timeout at NCCL work: \d+, "
    r"last enqueued NCCL work: (?P<queued>-?\d+), last completed NCCL work: (?P<done>-?\d+)"
)
_GLOO = re.compile(r"gloo.*?(?:Timed out waiting \d+ms|Connection (?:closed|reset) by peer)")
_NET = re.compile(r"NCCL WARN (?P<text>.*?NET.*?(?:completion|error).*)")


def parse_watchdog(lines: Iterable[str]) -> list[Timeout]:
    """Timeouts in a log, of every generation of torch's text; other lines are ignored."""
    return [
        Timeout(int(work["rank"]), int(work["seq"]), work["op"], int(work["limit"]))
        for work in map(_WORK.search, lines)
        if work
    ]


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a rank's process group was when its watchdog reported."""

    rank: int
    enqueued: int
    completed: int


def parse_counters(lines: Iterable[str]) -> list[Counters]:
    """`last enqueued … last completed …` lines."""
    return [
        Counters(int(found["rank"]), int(found["queued"]), int(found["done"]))
        for found in map(_COUNTERS.search, lines)
        if found
    ]


def clues(snapshot: JobSnapshot) -> list[Clue]:
    """All evidence, the most important first."""
    return [
        *_flight(snapshot),
        *_watchdog(snapshot),
        *_gloo(snapshot),
        *_network(snapshot),
        *_kernel(snapshot),
    ]


def _flight(snapshot: JobSnapshot) -> list[Clue]:
    dumps, unread = {}, []
    for node in snapshot.nodes:
        for rank, packed in node.flight.items():
            dump = read_dump(packed)
            if isinstance(dump, str):
                unread.append(
                    Clue("flight recorder", f"rank {rank}: {dump}", (rank,), (node.name,))
                )
            else:
                dumps[rank] = dump
    world = snapshot.world or (max(dumps) + 1 if dumps else 0)
    return [
        *(Clue("flight recorder", text, tuple(ranks)) for text, ranks in compare(dumps, world)),
        *unread,
    ]


def _watchdog(snapshot: JobSnapshot) -> list[Clue]:
    groups: dict[tuple[int, str], list[Timeout]] = {}
    counters: dict[int, Counters] = {}
    for node in snapshot.nodes:
        for rank, lines in node.logs.items():
            for one in parse_watchdog(lines):
                groups.setdefault((one.sequence, one.operation), []).append(one)
            for counter in parse_counters(lines):
                counters[rank] = counter
    found = []
    for (sequence, operation), timeouts in sorted(groups.items()):
        ranks = sorted({one.rank for one in timeouts})
        limit_ms = next((one.timeout_ms for one in timeouts if one.timeout_ms), None)
        after = f" after {limit_ms / 1000:g} s" if limit_ms else ""
        text = (
            f"NCCL watchdog: {operation} number {sequence} timed out{after} on rank "
            f"{fold_ranks(ranks)}"
        )
        found.append(Clue("log", text, tuple(ranks)))
    if counters:
        lowest = min(one.completed for one in counters.values())
        behind = [rank for rank, one in counters.items() if one.completed == lowest]
        if len(behind) < len(counters):
            text = f"rank {fold_ranks(behind)} completed the fewest collectives ({lowest})"
            found.append(Clue("log", text, tuple(sorted(behind))))
    return found


def _gloo(snapshot: JobSnapshot) -> list[Clue]:
    ranks = sorted(
        rank
        for node in snapshot.nodes
        for rank, lines in node.logs.items()
        if any(_GLOO.search(line) for line in lines)
    )
    text = f"gloo lost or waited too long for a peer on rank {fold_ranks(ranks)}"
    return [Clue("log", text, tuple(ranks))] if ranks else []


def _network(snapshot: JobSnapshot) -> list[Clue]:
    found: dict[str, list[int]] = {}
    for node in snapshot.nodes:
        for rank, lines in node.logs.items():
            for line in lines:
                warned = _NET.search(line)
                if warned:
                    found.setdefault(warned["text"][:160], []).append(rank)
    return [
        Clue("log", f"rank {fold_ranks(ranks)}: {text}", tuple(sorted(set(ranks))))
        for text, ranks in found.items()
    ]


def _kernel(snapshot: JobSnapshot) -> list[Clue]:
    """What the nodes' kernels logged in the last hour, equal lines of many nodes as one."""
    nodes: dict[tuple[str, int | None, str], list[str]] = {}
    ages: dict[tuple[str, int | None, str], float] = {}
    for node in snapshot.nodes:
        for age_s, line in node.kernel:
            for event in read_events(line, Unknown("not asked"), Unknown("not asked")):
                number = event.xid if event.kind == "xid" else None
                text = f"{event.kind} {event.subject}".strip()
                if number is not None:
                    text = f"Xid {number} on {event.subject}: {grade(number, event.line).meaning}"
                key = (event.kind, number, text)
                nodes.setdefault(key, []).append(node.name)
                ages[key] = min(age_s, ages.get(key, age_s))
    found = []
    for key, names in sorted(nodes.items(), key=lambda item: ages[item[0]]):
        names = list(dict.fromkeys(names))
        ago = f"{ages[key] / 60:.0f} min ago" if ages[key] >= 90 else f"{ages[key]:.0f} s ago"
        found.append(Clue("kernel", f"{fold(names)}: {key[2]} ({ago})", nodes=tuple(names)))
    for node in snapshot.nodes:
        if node.kernel_cut_s is not None:
            text = (
                f"{node.name}: its log is longer than 1 MiB, only the last "
                f"{node.kernel_cut_s / 60:.0f} min of it were read"
            )
            found.append(Clue("kernel", text, nodes=(node.name,)))
    return found
