"""What logs, flight recorders and kernels say beside the stacks: NCCL's watchdog, Xid, counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl.job import fold_ranks
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
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*?)\): (?P<xid>\d+)(?:, (?P<rest>.*))?")


def parse_watchdog(lines: Iterable[str]) -> list[Timeout]:
    """Timeouts in a log, of every generation of torch's text; other lines are passed over."""
    found = []
    for line in lines:
        work = _WORK.search(line)
        if work:
            found.append(
                Timeout(
                    int(work["rank"]), int(work["seq"]), work["op"],
                    int(work["limit"]) if work["limit"] else None,
                    int(work["ran"]) if work["ran"] else None,
                )
            )  # fmt: skip
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


def parse_xid(line: str) -> tuple[str, int, str] | None:
    """(device, Xid, rest) of a kernel line, also in its MIG form; None for other lines."""
    found = _XID.search(line)
    return (found["device"], int(found["xid"]), (found["rest"] or "").strip()) if found else None


def _kernel(picture: Picture) -> list[Clue]:
    found: list[Clue] = []
    others: dict[str, list[str]] = {}
    for node in picture.nodes:
        for age_s, line in node.kernel:
            xid = parse_xid(line)
            if xid:
                device, number, rest = xid
                found.append(
                    Clue(
                        "kernel",
                        f"{node.name}: Xid {number} on {device} {age_s / 60:.0f} min ago: {rest[:100]}",
                        nodes=(node.name,),
                    )
                )
            else:
                text = re.sub(r"^\[[^\]]*\]\s*", "", line)
                others.setdefault(re.sub(r"\d+", "#", text)[:160], []).append(node.name)
                if len(others[re.sub(r"\d+", "#", text)[:160]]) == 1:
                    found.append(
                        Clue(
                            "kernel",
                            f"{node.name}: {text[:140]} ({age_s / 60:.0f} min ago)",
                            nodes=(node.name,),
                        )
                    )
    return found


def nodes_of(clues: Sequence[Clue]) -> str:
    """The nodes that the kernel's clues name."""
    return fold(list(dict.fromkeys(name for clue in clues for name in clue.nodes)))
