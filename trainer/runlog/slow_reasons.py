"""What a slow rank's node says that the others' do not: a table from readings to words. Pure.

A reading is what one rank read of itself, its GPU and its node while it was slow
(`trainer.slow_ranks.reading`), by name. A reason is always a difference from the median of the
other ranks; what belongs to a node is compared with ranks of other nodes only. Where nothing
differs there is no reason, and `unread` says what could not be compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Reading = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure that explains slowness in some phases when it is above (or below) the others' by a
    factor, and by at least `least` in its unit."""

    name: str
    words: str  # with {own} and {others}
    group: str  # in `unread`
    is_high: bool = True  # too much of it is bad
    factor: float = 1.5
    least: float = 0.0
    of_node: bool = False  # all ranks of a node have the same
    phases: tuple[str, ...] = ()  # none: all


@dataclass(frozen=True, slots=True)
class CommonRow:
    """A figure that explains why all ranks are slower than before: the middle one is so large that
    nobody need compare it."""

    name: str
    words: str  # with {middle}
    least: float
    phases: tuple[str, ...] = ()


DATA = ("data",)
MODEL = ("encode", "forward", "backward")
TABLE = (
    Row("throttle", "its GPU is slowed down: {own}", "GPU", phases=MODEL),
    Row("sm_mhz", "its GPU runs at {own:.0f} MHz, the others at {others:.0f}", "GPU", False, 1.05, phases=MODEL),
    Row("power_limit_w", "its GPU's power limit is {own:.0f} W, the others' {others:.0f}", "GPU", False, 1.02, phases=MODEL),
    Row("gpu_processes", "{own:.0f} other processes use its GPU, the others' {others:.0f}", "GPU", least=1.0, phases=MODEL),
    Row("pcie_width", "its GPU has {own:.0f} PCIe lanes, the others {others:.0f}", "GPU", False, 1.5),
    Row("pcie_gen", "its GPU's PCIe is generation {own:.0f}, the others' {others:.0f}", "GPU", False, 1.2),
    Row("nvlinks", "its GPU has {own:.0f} NVLinks up, the others {others:.0f}", "GPU", False, 1.01),
    Row("quota", "its control group's CPU quota holds it back {own:.0%} of the time, the others {others:.0%}", "quota", least=0.02),
    Row("cpu_wait", "its process waits for a CPU {own:.0%} of the time, the others {others:.0%}", "CPU", least=0.03),
    Row("steal", "the host of its virtual machine takes {own:.0%} of the CPUs' time, on the others {others:.0%}", "CPU", least=0.02, of_node=True),
    Row("cpu_mhz", "its node's fastest CPU runs at {own:.0f} MHz, the others' at {others:.0f}", "CPU", False, 1.1, of_node=True),
    Row("foreign_cores", "other programs use {own:.1f} CPUs of its node, on the others {others:.1f}", "CPU", least=0.8, of_node=True),
    Row("memory_stall", "its node waits for memory {own:.0%} of the time, the others {others:.0%}", "pressure", least=0.02, of_node=True),
    Row("decoders_disk", "its decoders wait for storage {own:.0%} of the time, the others' {others:.0%}", "decoders", least=0.15, phases=DATA),
    Row("io_stall", "its node waits for storage {own:.0%} of the time, the others {others:.0%}", "pressure", least=0.05, of_node=True, phases=DATA),
    Row("decoders_cpu_wait", "its decoders wait for a CPU {own:.0%} of the time, the others' {others:.0%}", "decoders", least=0.1, phases=DATA),
    Row("decoders_busy", "its decoders compute {own:.0%} of the time, the others' {others:.0%}", "decoders", least=0.2, phases=DATA),
    Row("ib_errors", "its InfiniBand ports count {own:.0f} errors a second, the others' {others:.0f}", "InfiniBand", least=1.0, of_node=True, phases=DATA),
    Row("ib_gbps", "its node's InfiniBand ports have {own:.0f} Gbit/s, the others' {others:.0f}", "InfiniBand", False, 1.05, of_node=True, phases=DATA),
)  # fmt: skip


COMMON = (
    CommonRow(
        "quota", "CPU quotas of their control groups hold them back {middle:.0%} of the time", 0.05
    ),
    CommonRow("cpu_wait", "their processes wait for a CPU {middle:.0%} of the time", 0.1),
    CommonRow(
        "steal", "the hosts of their virtual machines take {middle:.0%} of the CPUs' time", 0.05
    ),
    CommonRow("foreign_cores", "other programs use {middle:.1f} CPUs of each node", 0.8),
    CommonRow("memory_stall", "their nodes wait for memory {middle:.0%} of the time", 0.05),
    CommonRow(
        "decoders_disk", "their decoders wait for storage {middle:.0%} of the time", 0.3, DATA
    ),
    CommonRow(
        "decoders_cpu_wait", "their decoders wait for a CPU {middle:.0%} of the time", 0.2, DATA
    ),
    CommonRow("io_stall", "their nodes wait for storage {middle:.0%} of the time", 0.1, DATA),
)


NAMING = ("cpu_wait", "foreign_cores", "decoders_cpu_wait")  # rows that name the busiest program


@dataclass(frozen=True, slots=True)
class Reason:
    name: str
    text: str
    own: float | str
    others: float | None = None


def reasons(own: Reading, others: Sequence[Reading], phase: str) -> tuple[Reason, ...]:
    """What explains slowness in this phase, in the order of the table. `others` are readings of
    ranks that are not slow."""
    found = []
    for row in TABLE:
        if row.phases and phase not in row.phases:
            continue
        value, theirs = own.get(row.name), _of(row, own, others)
        if value is None or not theirs:
            continue
        if isinstance(value, str):
            if value and 2 * theirs.count(value) < len(theirs):
                found.append(Reason(row.name, row.words.format(own=value), value))
            continue
        middle = float(statistics.median(theirs))
        if _differs(row, float(value), middle):
            text = row.words.format(own=value, others=middle)
            found.append(Reason(row.name, text + _who(row.name, own), float(value), middle))
    return tuple(found)


def common_reasons(readings: Sequence[Reading], phase: str) -> tuple[Reason, ...]:
    """What explains that all ranks are slower, in the order of the table; the busiest other program
    is named where the processors are short."""
    found = []
    named = next((one for one in readings if one.get("foreign_name")), {})
    for row in COMMON:
        values = [float(one[row.name]) for one in readings if one.get(row.name) is not None]
        if (row.phases and phase not in row.phases) or 2 * len(values) <= len(readings):
            continue
        middle = float(statistics.median(values))
        if middle >= row.least:
            text = row.words.format(middle=middle)
            found.append(Reason(row.name, text + _who(row.name, named), middle))
    return tuple(found)


def unread(own: Reading, others: Sequence[Reading], phase: str) -> tuple[str, ...]:
    """Groups of the table of which nothing could be compared, in its order."""
    rows = [row for row in TABLE if not row.phases or phase in row.phases]
    known = {row.group for row in rows if own.get(row.name) is not None and _of(row, own, others)}
    return tuple(dict.fromkeys(row.group for row in rows if row.group not in known))


def _of(row: Row, own: Reading, others: Sequence[Reading]) -> list[Any]:
    return [
        other[row.name]
        for other in others
        if other.get(row.name) is not None
        and not (row.of_node and other.get("host") == own.get("host"))
    ]


def _differs(row: Row, own: float, middle: float) -> bool:
    high, low = (own, middle) if row.is_high else (middle, own)
    return high > row.factor * max(low, 0.0) and high - low >= row.least


def _who(row: str, reading: Reading) -> str:
    name = reading.get("foreign_name")
    return f" ({name})" if name and row in NAMING else ""
