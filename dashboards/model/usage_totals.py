"""What each user and job of a node had of its GPUs so far: folded at every reading. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dashboards.model.samples import Gpu, NodeSample, Process

Owner = tuple[str, str]
"""(user, job); a job is the launcher's tag, else the name of the process."""
FREE: Owner = ("", "")
UNKNOWN_OWNER: Owner = ("?", "")  # who holds the GPUs could not be found out
OTHERS: Owner = ("?", "others")  # beyond MOST_OWNERS
J_PER_KWH = 3.6e6
MOST_OWNERS = 256  # of one node, since the watch began
IDLE_UTIL = 0.05  # a GPU that is held and less used than this is idle
# Between two readings of a card's energy counter: more means that it began again, or is wrong. The
# node sends it in steps (payload/watch.py).
MOST_W, COUNTER_STEP_J = 3000.0, 1000.0
Owners = Mapping[int, tuple[Owner, ...]]  # of each GPU that is held
_NOBODY = (FREE,)
_NOT_KNOWN = (UNKNOWN_OWNER,)
_NO_USERS = (FREE[0], UNKNOWN_OWNER[0])


@dataclass(frozen=True, slots=True)
class Totals:
    """GPU seconds and joules. Seconds of which neither the energy counter nor the power is known
    are apart."""

    energy_j: float = 0.0
    known_s: float = 0.0
    idle_s: float = 0.0  # held and less used than IDLE_UTIL
    unknown_s: float = 0.0

    @property
    def energy_kwh(self) -> float | None:
        """None where no second of it is known."""
        return self.energy_j / J_PER_KWH if self.known_s else None

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.energy_j + other.energy_j,
            self.known_s + other.known_s,
            self.idle_s + other.idle_s,
            self.unknown_s + other.unknown_s,
        )


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Totals of each owner on one node; `holders` are those of the newest reading."""

    totals: Mapping[Owner, Totals] = field(default_factory=dict)
    holders: Owners | None = None
    made_of: Any = None  # the processes that `holders` were made of

    def __hash__(self) -> int:
        """So that it may be a default; an empty one is shared by all nodes."""
        return id(self)


def longest_gap_s(interval_s: float) -> float:
    """Between two readings whose power, or whose holders, are taken for the time between them."""
    return max(10.0, 3.0 * interval_s)


def owners(processes: tuple[Process, ...] | None) -> Owners | None:
    """Who holds each GPU; None where that could not be found out.

    A process of which the driver does not say the GPU holds none here.
    """
    if processes is None:
        return None
    found: dict[int, tuple[Owner, ...]] = {}
    for one in processes:
        if one.gpu is None:
            continue
        owner, others = (one.user, one.run or one.name), found.get(one.gpu, ())
        if owner not in others:
            found[one.gpu] = (*others, owner)
    return found


def holders_of(holders: Owners | None, gpu: int) -> tuple[Owner, ...]:
    """Those of one GPU: FREE where nobody holds it."""
    return _NOT_KNOWN if holders is None else holders.get(gpu, _NOBODY)


def _pairs(
    before: tuple[Gpu, ...], now: tuple[Gpu, ...]
) -> list[tuple[int, Gpu | None, Gpu | None]]:
    """(index, before, now) of each GPU that one of two readings has."""
    both = list(zip(before, now, strict=False))
    if len(before) == len(now) and all(one.index == two.index for one, two in both):
        return [(gpu.index, was, gpu) for was, gpu in both]  # as nearly always
    was_there, is_there = ({gpu.index: gpu for gpu in gpus} for gpus in (before, now))
    indexes = sorted(was_there.keys() | is_there.keys())
    return [(index, was_there.get(index), is_there.get(index)) for index in indexes]


def _spent_j(was: Gpu | None, gpu: Gpu | None, passed_s: float, is_gap: bool) -> float | None:
    """Between two readings of a card: by its counter, which knows what a gap took, too, else by its
    power."""
    if was is None or gpu is None:
        return None
    if was.energy_j is not None and gpu.energy_j is not None:
        spent_j = gpu.energy_j - was.energy_j
        if 0 <= spent_j <= MOST_W * passed_s + COUNTER_STEP_J:
            return spent_j
    if is_gap or was.power_w is None or gpu.power_w is None:
        return None
    return passed_s * (was.power_w + gpu.power_w) / 2


def after_reading(
    usage: NodeUsage, before: NodeSample | None, sample: NodeSample, interval_s: float
) -> NodeUsage:
    """With the time between two readings of a node, which those had who hold its GPUs now; who
    held them in a gap is known where the same do before and after it."""
    holders = usage.holders
    if holders is None or usage.made_of is not sample.processes:
        holders = owners(sample.processes)
    passed_s = 0.0 if before is None else sample.at_s - before.at_s
    if before is None or passed_s <= 0 or not (sample.gpus or before.gpus):
        return NodeUsage(usage.totals, holders, sample.processes)
    is_gap = passed_s > longest_gap_s(interval_s)
    if is_gap and sample.up_s is not None and sample.up_s < passed_s:
        before = replace(before, gpus=())  # it was started again, and its counters with it
    sums: dict[Owner, list[float]] = {}
    for index, was, gpu in _pairs(before.gpus or (), sample.gpus or ()):
        those = _NOT_KNOWN if holders is None else holders.get(index, _NOBODY)
        spent_j = _spent_j(was, gpu, passed_s, is_gap)
        if is_gap and spent_j is not None and holders_of(usage.holders, index) != those:
            those = _NOT_KNOWN
        share_s = passed_s / len(those)
        is_idle = not is_gap and gpu and gpu.util is not None and gpu.util < IDLE_UTIL
        for owner in those:
            row = sums.get(owner) or sums.setdefault(owner, [0.0, 0.0, 0.0, 0.0])
            if spent_j is None:
                row[3] += share_s
                continue
            row[0] += spent_j / len(those)
            row[1] += share_s
            if is_idle and owner[0] not in _NO_USERS:
                row[2] += share_s
    totals = dict(usage.totals)
    for owner, row in sums.items():
        if owner not in totals and len(totals) >= MOST_OWNERS:
            owner = OTHERS
        totals[owner] = totals.get(owner, _NONE).plus(Totals(*row))
    return NodeUsage(totals, holders, sample.processes)


_NONE = Totals()
