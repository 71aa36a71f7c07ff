"""Which GPUs differ: the coldest, the hottest, and the idle ones among working ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from checks.facts import Gpu, NodeFacts, Unknown, known, or_none
from checks.idle import working_power_w
from checks.profile import Profile
from clusterctl.jobs.processes import fold_ranks

FEWEST = 3  # of two nobody can say which one is odd
IDLE_PERCENT, BUSY_PERCENT = 5.0, 50.0  # of utilization, where a card reports no power


@dataclass(frozen=True, slots=True)
class Place:
    node: str
    gpu: str
    temperature_c: float
    power_w: float | None

    def words(self) -> str:
        power = "" if self.power_w is None else f" {self.power_w:.0f} W"
        return f"{self.node}/{self.gpu} {self.temperature_c:.0f} C{power}"


def coldest_and_hottest(nodes: Sequence[NodeFacts]) -> tuple[Place | None, Place | None]:
    """By temperature, then power; (None, None) with fewer than two GPUs that report it."""
    places = [
        Place(node.name, gpu.label(position), gpu.temperature_c, or_none(gpu.power_w))
        for node in nodes
        for position, gpu in enumerate(node.gpus.gpus)
        if not isinstance(gpu.temperature_c, Unknown)
    ]
    if len(places) < 2:
        return None, None

    def warmth(one: Place) -> tuple[float, float]:
        return one.temperature_c, one.power_w or 0.0

    return min(places, key=warmth), max(places, key=warmth)


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle GPUs of one node while the others work; watts, else percent of utilization."""

    node: str
    gpus: tuple[str, ...]
    values: tuple[float, ...]
    others: float
    unit: str
    others_are: str  # "the others", "other nodes"

    @property
    def numbers(self) -> str:
        """0-3,7."""
        if not all(one.isdecimal() for one in self.gpus):
            return ",".join(self.gpus)
        return fold_ranks(map(int, self.gpus))


def find_idle(nodes: Sequence[NodeFacts], limits: Profile) -> dict[str, Idle]:
    """By node name. A rank that hangs draws 100 W beside peers at 700 W, and the mean hides it.

    Compared with its own node's GPUs where those work, else with all.
    """
    everything = [gpu for node in nodes for gpu in node.gpus.gpus]
    fleet_w, fleet_use = _working_w(everything, limits), _working_use(everything)
    found = {}
    for node in nodes:
        own_w, own_use = _working_w(node.gpus.gpus, limits), _working_use(node.gpus.gpus)
        working_w, working_use = own_w or fleet_w, own_use or fleet_use
        idle: list[tuple[str, float, str]] = []
        for position, gpu in enumerate(node.gpus.gpus):
            power, use = gpu.power_w, gpu.utilization_percent
            if not isinstance(power, Unknown):
                if working_w is not None and power < limits.power_outlier_share * working_w:
                    idle.append((gpu.label(position), power, "W"))
            elif not isinstance(use, Unknown) and working_use and use <= IDLE_PERCENT:
                idle.append((gpu.label(position), use, "%"))
        if idle:
            names, values, units = zip(*idle, strict=True)
            by_power = units[0] == "W"
            others = (working_w if by_power else working_use) or 0.0
            who = "the others" if (own_w if by_power else own_use) else "other nodes"
            found[node.name] = Idle(node.name, names, values, others, units[0], who)
    return found


def _working_w(gpus: Sequence[Gpu], limits: Profile) -> float | None:
    return working_power_w(
        known(gpu.power_w for gpu in gpus),
        max(known(gpu.power_limit_w for gpu in gpus), default=None),
        fewest=FEWEST,
        share=limits.power_outlier_share,
        median=statistics.median_high,
    )


def _working_use(gpus: Sequence[Gpu]) -> float | None:
    use = known(gpu.utilization_percent for gpu in gpus)
    median = statistics.median_high
    return working_power_w(use, None, fewest=FEWEST, share=1.0, else_w=BUSY_PERCENT, median=median)


def idle_words(idle: Idle, count: int) -> str:
    """`GPU 5 idle at 101 W, the others at 698 W`."""
    unit = "%" if idle.unit == "%" else " W"
    span = " to ".join(dict.fromkeys(f"{end(idle.values):.0f}" for end in (min, max))) + unit
    which = f"all {count}" if len(idle.gpus) == count > 1 else f"GPU {idle.numbers}"
    return f"{which} idle at {span}, {idle.others_are} at {idle.others:.0f}{unit}"
