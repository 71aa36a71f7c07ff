"""What a node reported beside its stacks: RAS answers, GPU readings, its addresses."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.facts import NOT_ASKED, Maybe, RasAnswer, Unknown
from checks.parsers.ras import parse_ras

RAS_BYTES = 4 << 20  # of one answer, as the payload keeps it
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One reading of a GPU; None for what NVML did not say."""

    index: int
    used_pct: int | None
    power_w: float | None
    limit_w: float | None
    clock_mhz: int | None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeCounters:
    ras: tuple[Maybe[RasAnswer], ...] = ()  # at the first and at the last sample; () not asked
    addresses: tuple[str, ...] = ()
    inner: Mapping[int, int] | None = None  # number of a process, and that in its container
    gpus: Maybe[tuple[tuple[GpuLoad, ...], ...]] = NOT_ASKED  # readings, in order


def read_counters(sent: Mapping[str, Any]) -> NodeCounters:
    """`sent` has the shape of remote/messages/stacks.py."""
    inner = {int(pid): number for pid, number in sent["inner"].items()}
    ras = tuple(_answer(one) for one in sent["ras"])
    return NodeCounters(ras, tuple(sent["addresses"]), inner, _readings(sent["gpus"]))


def _answer(sent: Mapping[str, Any]) -> Maybe[RasAnswer]:
    if "text" not in sent:
        return Unknown(sent.get("error") or "no answer")
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(sent["text"]), RAS_BYTES + 1)
    except (zlib.error, ValueError):
        return Unknown("the answer of RAS cannot be unpacked")
    is_cut = bool(sent.get("cut")) or len(data) > RAS_BYTES
    return parse_ras(data.decode("utf-8", "backslashreplace"), is_cut=is_cut)


def _readings(sent: Mapping[str, Any] | None) -> Maybe[tuple[tuple[GpuLoad, ...], ...]]:
    if sent is None:
        return Unknown("not asked")
    if sent["rc"] != 0:
        return Unknown(f"NVML: {(sent['err'] or sent['out']).strip()[:120] or sent['state']}")
    try:
        rows = json.loads(sent["out"])
        return tuple(tuple(_load(*row) for row in reading[:MOST_GPUS]) for reading in rows[:2])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return Unknown("the readings of the GPUs cannot be read")


def _load(
    index: Any, used_pct: Any, power_w: Any, limit_w: Any, clock_mhz: Any, pids: Any
) -> GpuLoad:
    numbers = [one if type(one) in (int, float) else None for one in (used_pct, power_w, limit_w)]
    clock = clock_mhz if type(clock_mhz) is int else None
    used, power, limit = numbers
    owners = tuple(pid for pid in pids if type(pid) is int)
    return GpuLoad(int(index), None if used is None else int(used), power, limit, clock, owners)
