"""What NCCL and its watchdog write when they fail, in three generations of the format."""

from __future__ import annotations

import re
from dataclasses import dataclass

from checks.facts import Maybe, Unknown


@dataclass(frozen=True, slots=True)
class CollectiveTimeout:
    """The watchdog gave up on a collective. `rank` is the one that waited, not the one that hangs."""

    rank: int
    sequence: Maybe[int]
    operation: Maybe[str]
    timeout_s: Maybe[float]
    last_completed: Maybe[int]


@dataclass(frozen=True, slots=True)
class FabricError:
    """An InfiniBand completion with an error: `peer` did not answer. Status 12 is retries exceeded."""

    host: str
    peer: Maybe[str]
    status: int
    vendor: Maybe[int]
    device: Maybe[str]


@dataclass(frozen=True, slots=True)
class SocketFault:
    """NCCL found no usable interface for its bootstrap."""

    line: str


_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\((.*?)\) ran for"
)
_NEWER = re.compile(
    r"Rank (\d{1,7})\] Timeout at NCCL work: (\d{1,15}).*?last completed NCCL work: (\d{1,15})"
)
_COMPLETION = re.compile(
    r"^(?P<host>[^\s:]+):.*NET/IB\s?: Got completion from peer (?P<peer>[^\s<]+)"
    r"(?:<\d+>)? with (?:status=|error )(?P<status>\d{1,5})(?P<rest>.*)$"
)


def read_timeouts(text: str) -> tuple[CollectiveTimeout, ...]:
    """One for each rank that speaks, in order; of a rank the first line with an operation counts."""
    found: dict[int, CollectiveTimeout] = {}
    completed = {int(rank): int(last) for rank, _, last in _NEWER.findall(text)}
    for rank_text, words in _WATCHDOG.findall(text):
        rank = int(rank_text)
        values = dict(re.findall(r"(\w+)(?:\(ms\))?=(\w+)", words))
        found.setdefault(
            rank,
            CollectiveTimeout(
                rank,
                _whole(values, "SeqNum"),
                values.get("OpType") or Unknown("not said"),
                _seconds(values),
                completed.get(rank, Unknown("not said")),
            ),
        )
    return tuple(found.values())


def _whole(values: dict[str, str], key: str) -> Maybe[int]:
    text = values.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 16 else Unknown("not said")


def _seconds(values: dict[str, str]) -> Maybe[float]:
    value = _whole(values, "Timeout")
    return value if isinstance(value, Unknown) else value / 1000


def read_fabric_errors(text: str) -> tuple[FabricError, ...]:
    """`NET/IB: Got completion from peer …` lines: who lost whom, over which card."""
    found = []
    for line in text.splitlines():
        match = _COMPLETION.match(line.strip())
        if match is None:
            continue
        vendor = re.search(r"vendor err (\d{1,6})", match["rest"])
        device = re.search(r"\bhca (\S+)", match["rest"])
        found.append(
            FabricError(
                match["host"],
                match["peer"],
                int(match["status"]),
                int(vendor[1]) if vendor else Unknown("not said"),
                device[1] if device else Unknown("not said"),
            )
        )
    return tuple(found)


def read_socket_faults(text: str) -> tuple[SocketFault, ...]:
    """Lines that say that NCCL_SOCKET_IFNAME names nothing usable, in words or by a mad family."""
    pattern = re.compile(r"no socket interface found|is neither AF_INET\(2\) nor AF_INET6\(10\)")
    return tuple(SocketFault(line.strip()) for line in text.splitlines() if pattern.search(line))


def read_bus_bandwidth(text: str) -> Maybe[float]:
    """GB/s of nccl-tests' last line `# Avg bus bandwidth    : 210.99`; wrong results are Unknown."""
    wrong = re.search(r"^# Out of bounds values\s*:\s*(\d+)\s+(\w+)", text, re.MULTILINE)
    if wrong and wrong[2] != "OK":
        return Unknown(f"{wrong[1]} wrong values")
    match = re.search(r"^# Avg bus bandwidth\s*:\s*(\d{1,7}(?:\.\d{1,9})?)\s*$", text, re.MULTILINE)
    return (
        Unknown("no average bandwidth" if text.strip() else "empty")
        if match is None
        else float(match[1])
    )
