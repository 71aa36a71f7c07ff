"""What logs, flight recorders and kernels say beside the stacks: NCCL's watchdog, Xid, counters."""

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
from clusterctl.stacks.model import Picture


@dataclass(frozen=True, slots=True)
class Clue:
    """One thing that was said; `source` is where: log, flight recorder, kernel."""

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
    """A collective that torch's watchdog gave up on. None where this generation does not say."""

    rank: int | None
    sequence: int
    operation: str
    timeout_ms: int | None
    ran_ms: int | None
    group: str | None = None


_WORK = re.compile(
    r"\[Rank (?P<rank>\d+)\].*?Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, .*?)?(?:, Timeout\(ms\)=(?P<limit>\d+))\)"
    r"(?: ran for (?P<ran>\d+) milliseconds)?"
)
_COUNTERS = re.compile(
    r"\[PG (?:ID )?(?P<pg>\S+).*?Rank (?P<rank>\d+)\].*?Timeout at NCCL work: (?P<at>\d+), "
    r"last enqueued NCCL work: (?P<queued>-?\d+), last completed NCCL work: (?P<done>-?\d+)"
)
_GLOO = re.compile(
    r"gloo.*?(?:Timed out waiting (?P<ms>\d+)ms|Connection (?:closed|reset) by peer(?: \[(?P<peer>[^\]]+)\])?)"
)
_NET = re.compile(r"NCCL WARN (?P<text>.*?NET.*?(?:completion|error).*)")


def parse_watchdog(lines: Iterable[str]) -> list[Timeout]:
    """Timeouts in a log, of every generation of torch's text; other lines are passed over."""
    found = []
    for line in lines:
        work = _WORK.search(line)
        if work:
            found.append(
                Timeout(
                    int(work["rank"]),
                    int(work["seq"]),
                    work["op"],
                    int(work["limit"]) if work["limit"] else None,
                    int(work["ran"]) if work["ran"] else None,
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a rank's process group was when its watchdog spoke."""

    rank: int
    group: str
    timed_out: int
    enqueued: int
    completed: int


def parse_counters(lines: Iterable[str]) -> list[Counters]:
    """`last enqueued … last completed …` lines."""
    found = []
    for line in lines:
        at = _COUNTERS.search(line)
        if at:
            found.append(
                Counters(
                    int(at["rank"]), at["pg"], int(at["at"]), int(at["queued"]), int(at["done"])
                )
            )
    return found


def clues(picture: Picture) -> list[Clue]:
    """Everything that was said, the most telling first."""
    return [
        *_flight(picture),
        *_watchdog(picture),
        *_gloo(picture),
        *_network(picture),
        *_kernel(picture),
    ]


def _flight(picture: Picture) -> list[Clue]:
    dumps, unread = {}, []
    for node in picture.nodes:
        for rank, packed in node.flight.items():
            dump = read_dump(packed)
            if isinstance(dump, str):
                unread.append(
                    Clue("flight recorder", f"rank {rank}: {dump}", (rank,), (node.name,))
                )
            else:
                dumps[rank] = dump
    world = picture.world or (max(dumps) + 1 if dumps else 0)
    return [
        *(Clue("flight recorder", text, tuple(ranks)) for text, ranks in compare(dumps, world)),
        *unread,
    ]


def _watchdog(picture: Picture) -> list[Clue]:
    groups: dict[tuple[int, str], list[Timeout]] = {}
    counters: dict[int, Counters] = {}
    for node in picture.nodes:
        for rank, lines in node.logs.items():
            for one in parse_watchdog(lines):
                groups.setdefault((one.sequence, one.operation), []).append(one)
            for counter in parse_counters(lines):
                counters[rank] = counter
    found = []
    for (sequence, operation), timeouts in sorted(groups.items()):
        ranks = sorted({one.rank for one in timeouts if one.rank is not None})
        limit = next((one.timeout_ms for one in timeouts if one.timeout_ms), None)
        after = f" after {limit / 1000:g} s" if limit else ""
        found.append(
            Clue(
                "log",
                f"NCCL watchdog: {operation} number {sequence} timed out{after} on rank {fold_ranks(ranks)}",
                tuple(ranks),
            )
        )
    if counters:
        lowest = min(one.completed for one in counters.values())
        behind = [rank for rank, one in counters.items() if one.completed == lowest]
        if len(behind) < len(counters):
            found.append(
                Clue(
                    "log",
                    f"rank {fold_ranks(behind)} completed the fewest collectives ({lowest})",
                    tuple(sorted(behind)),
                )
            )
    return found


def _gloo(picture: Picture) -> list[Clue]:
    ranks = sorted(
        rank
        for node in picture.nodes
        for rank, lines in node.logs.items()
        if any(_GLOO.search(line) for line in lines)
    )
    return (
        [
            Clue(
                "log",
                f"gloo lost or waited too long for a peer on rank {fold_ranks(ranks)}",
                tuple(ranks),
            )
        ]
        if ranks
        else []
    )


def _network(picture: Picture) -> list[Clue]:
    found: dict[str, list[int]] = {}
    for node in picture.nodes:
        for rank, lines in node.logs.items():
            for line in lines:
                warned = _NET.search(line)
                if warned:
                    found.setdefault(warned["text"][:160], []).append(rank)
    return [
        Clue("log", f"rank {fold_ranks(ranks)}: {text}", tuple(sorted(set(ranks))))
        for text, ranks in found.items()
    ]


def _kernel(picture: Picture) -> list[Clue]:
    """What the nodes' kernels logged in the last hour, equal lines of many nodes as one."""
    nodes: dict[tuple[str, int | None, str], list[str]] = {}
    ages: dict[tuple[str, int | None, str], float] = {}
    for node in picture.nodes:
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
    for node in picture.nodes:
        if node.kernel_cut_s is not None:
            text = f"{node.name}: its log is longer than 1 MiB, only the last {node.kernel_cut_s / 60:.0f} min of it were read"
            found.append(Clue("kernel", text, nodes=(node.name,)))
    return found
