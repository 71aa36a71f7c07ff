"""Which GPUs stand out: the coldest, the hottest, and the idle ones among working ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from checks.facts import Gpu, NodeFacts, Unknown
from checks.idle import working_power_w
from checks.profile import Profile
from clusterctl.jobs.processes import fold_ranks

FEWEST = 3  # of two nobody can say which one is odd
IDLE_PERCENT, BUSY_PERCENT = 5.0, 50.0  # of utilization, where a card tells no power


def label(gpu: Gpu, position: int) -> str:
    """The driver's number of a GPU; its place in the list where the driver tells none."""
    return str(position if isinstance(gpu.index, Unknown) else gpu.index)


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU of the fleet and how warm it is."""

    node: str
    gpu: str
    temperature_c: float
    power_w: float | None

    def words(self) -> str:
        power = "" if self.power_w is None else f" {self.power_w:.0f} W"
        return f"{self.node}/{self.gpu} {self.temperature_c:.0f} C{power}"


def coldest_and_hottest(nodes: Sequence[NodeFacts]) -> tuple[Place | None, Place | None]:
    """By temperature; (None, None) with fewer than two GPUs that tell it."""
    places = [
        Place(
            node.name,
            label(gpu, position),
            gpu.temperature_c,
            None if isinstance(gpu.power_w, Unknown) else gpu.power_w,
        )
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

    Held against its own node's GPUs where those work, else against all: a node that does nothing
    among twenty that train is one, too.
    """
    everything = [gpu for node in nodes for gpu in node.gpus.gpus]
    fleet_w, fleet_use = _working_w(everything, limits), _working_use(everything)
    found = {}
    for node in nodes:
        gpus = node.gpus.gpus
        own_w, own_use = _working_w(gpus, limits), _working_use(gpus)
        reference_w, reference_use = own_w or fleet_w, own_use or fleet_use
        idle: list[tuple[str, float, str, float]] = []
        for position, gpu in enumerate(gpus):
            power, use = gpu.power_w, gpu.utilization_percent
            name = label(gpu, position)
            if not isinstance(power, Unknown):
                if reference_w is not None and power < limits.power_outlier_share * reference_w:
                    idle.append((name, power, "W", reference_w))
            elif not isinstance(use, Unknown) and reference_use and use <= IDLE_PERCENT:
                idle.append((name, use, "%", reference_use))
        if idle:
            names, values, units, references = zip(*idle, strict=True)
            among_own = own_w if units[0] == "W" else own_use
            others = "the others" if among_own else "other nodes"
            found[node.name] = Idle(node.name, names, values, references[0], units[0], others)
    return found


def _working_w(gpus: Sequence[Gpu], limits: Profile) -> float | None:
    powers = [gpu.power_w for gpu in gpus if not isinstance(gpu.power_w, Unknown)]
    capped = [gpu.power_limit_w for gpu in gpus if not isinstance(gpu.power_limit_w, Unknown)]
    return working_power_w(
        powers,
        max(capped, default=None),
        fewest=FEWEST,
        share=limits.power_outlier_share,
        median=statistics.median_high,
    )


def _working_use(gpus: Sequence[Gpu]) -> float | None:
    known = [
        gpu.utilization_percent for gpu in gpus if not isinstance(gpu.utilization_percent, Unknown)
    ]
    return working_power_w(
        known, None, fewest=FEWEST, share=1.0, else_w=BUSY_PERCENT, median=statistics.median_high
    )


def idle_words(idle: Idle, count: int) -> str:
    """`GPU 5 idle at 101 W, the others at 698 W`."""
    low, high = min(idle.values), max(idle.values)
    unit = "%" if idle.unit == "%" else " W"
    span = f"{low:.0f}{unit}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}{unit}"
    all_of_it = len(idle.gpus) == count and count > 1
    which = f"all {count}" if all_of_it else f"GPU {idle.numbers}"
    return f"{which} idle at {span}, {idle.others_are} at {idle.others:.0f}{unit}"
