"""Which GPUs of a job compute, spin in a kernel that waits, or are idle. Pure.

A collective of NCCL that waits for a peer keeps its GPU at 100 % while the power stays near idle:
about 70 W of 700 in NVIDIA/nccl #968; one GPU at 0 % among many at 100 %, all at idle power, in
Theano/libgpuarray #387. No vendor states a limit: a third of the power limit is our choice,
between those and training, which takes more than half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from checks.facts import Unknown
from clusterctl.stacks.model import JobSnapshot
from clusterctl.stacks.node_counters import GpuLoad

SPIN_POWER = 0.33  # share of the power limit up to which a busy GPU only spins
BUSY_PCT = 95  # at least, in every reading
IDLE_PCT = 5  # at most


class Use(str, Enum):
    COMPUTES = "computes"
    SPINS = "spins"
    IDLE = "idle"
    UNCLEAR = "unclear"  # between these, or it changed

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class RankUse:
    """The GPUs of one rank; the busiest where it has several."""

    rank: int
    node: str
    use: Use
    load: GpuLoad  # the last reading

    @property
    def words(self) -> str:
        """`100 % at 118 of 700 W`."""
        limit = f" of {self.load.limit_w:.0f}" if self.load.limit_w else ""
        power = f" at {self.load.power_w:.0f}{limit} W" if self.load.power_w is not None else ""
        return f"{self.load.used_pct} %{power}"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What is known of the GPUs of all ranks."""

    ranks: tuple[RankUse, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict)  # node: why nothing is known

    def of(self, use: Use) -> list[RankUse]:
        return [one for one in self.ranks if one.use == use]

    def covers(self, ranks: Iterable[int]) -> bool:
        return {one.rank for one in self.ranks} >= set(ranks)


def judge_use(loads: list[GpuLoad]) -> Use:
    """One GPU over all its readings."""
    used = [one.used_pct for one in loads if one.used_pct is not None]
    if len(used) < len(loads) or len(loads) < 2:
        return Use.UNCLEAR
    if max(used) <= IDLE_PCT:
        return Use.IDLE
    if min(used) < BUSY_PCT:
        return Use.UNCLEAR
    shares = [one.power_w / one.limit_w for one in loads if one.power_w and one.limit_w]
    if len(shares) < len(loads):
        return Use.UNCLEAR
    if max(shares) <= SPIN_POWER:
        return Use.SPINS
    return Use.COMPUTES if min(shares) > SPIN_POWER else Use.UNCLEAR


_ORDER = (Use.COMPUTES, Use.UNCLEAR, Use.SPINS, Use.IDLE)


def read_use(snapshot: JobSnapshot) -> GpuUse:
    """GPUs by the ranks whose processes NVML names."""
    found: list[RankUse] = []
    unknown = {}
    for node in snapshot.nodes:
        readings = node.counters.gpus
        if isinstance(readings, Unknown):
            unknown[node.name] = readings.reason
            continue
        ranks = {p.pid: p.rank for p in node.procs if p.role == "trainer" and p.rank is not None}
        by_rank: dict[int, list[tuple[Use, GpuLoad]]] = defaultdict(list)
        for index in {load.index for reading in readings for load in reading}:
            loads = [load for reading in readings for load in reading if load.index == index]
            owners = {ranks[pid] for load in loads for pid in load.pids if pid in ranks}
            for rank in owners:
                shared = len(owners) > 1  # whose kernel runs there is unknown
                use = Use.UNCLEAR if shared else judge_use(loads)
                by_rank[rank].append((use, loads[-1]))
        for rank, uses in by_rank.items():
            use, load = min(uses, key=lambda pair: _ORDER.index(pair[0]))
            found.append(RankUse(rank, node.name, use, load))
    return GpuUse(tuple(sorted(found, key=lambda one: one.rank)), unknown)
