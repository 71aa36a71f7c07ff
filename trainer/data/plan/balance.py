"""Which microbatches share a step: alike in cost, so that no rank waits for another.

In random order a step of Open-Sora's stage 2 idles 17 % of 192 ranks, because a 720p microbatch
costs several times a 144p one. Here the random order is cut into windows of some steps, and
microbatches of equal cost inside a window make steps of their own; what does not fill a step stays
for the next window. The result is a permutation of the epoch's microbatches: a function of order,
costs, group and window only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.plan.buckets import Ints, bits
from trainer.errors import ConfigError

WINDOWS = range(1, 65)  # steps
_ALIKE = 1.02
_RANKS, _STEPS = 4, 5  # words that keep these draws apart from the plan's


@dataclass(frozen=True)
class Balance:
    """How an epoch's microbatches are put into steps. `costs[cell]` is the cost of a bucket's
    microbatch (`classes`); those of equal cost may share a step. `steps` is {epoch: (ranks,
    microbatches of each rank)}, from that epoch on: a run that resumes with another number of ranks
    keeps the order of its epoch."""

    window: int  # steps
    costs: tuple[int, ...]
    steps: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.window not in WINDOWS:
            limits = f"{WINDOWS[0]} to {WINDOWS[-1]} steps, 0 is off"
            raise ConfigError(f"dataset.balance_window {self.window}: {limits}")

    def step(self, epoch: int) -> tuple[int, int]:
        """Ranks, and microbatches of each rank, of one step in this epoch."""
        known = [start for start in self.steps if start <= epoch]
        return self.steps[max(known)] if known else (1, 1)

    def continued(self, epoch: int, consumed: int, ranks: int, each: int) -> Balance:
        """For a run that goes on here with such steps."""
        first = epoch if consumed == 0 else epoch + 1
        steps = {start: step for start, step in self.steps.items() if start <= epoch}
        continued = replace(self, steps=steps)
        if continued.step(first) != (ranks, each) or not steps:
            steps[first] = (ranks, each)
        return continued

    def order(self, cells: Ints, seed: int, epoch: int) -> Ints:
        """Places of a random order [N] of microbatches, given by their cells, in balanced order."""
        costs = np.asarray(self.costs, np.int64)[cells]
        return balanced(costs, *self.step(epoch), self.window, seed, epoch)

    def state(self) -> dict[str, Any]:
        steps = {str(start): list(step) for start, step in sorted(self.steps.items())}
        return {"window": self.window, "costs": list(self.costs), "steps": steps}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Balance:
        """From `state()`; raises ValueError when it is damaged."""
        try:
            pairs = state["steps"].items()
            steps = {int(start): (int(ranks), int(each)) for start, (ranks, each) in pairs}
            made = cls(int(state["window"]), tuple(map(int, state["costs"])), steps)
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ValueError(f"balance: {error}") from None
        if any(min(step) < 1 for step in steps.values()):
            raise ValueError(f"balance: steps {steps}")
        return made


def classes(costs: Iterable[float]) -> tuple[int, ...]:
    """Costs in steps of 2 % (their logarithms), 0 for no cost. The aspect ratios of a bucket thus
    count as alike. Made once, by one rank: a logarithm's last bit may differ between processors."""
    return tuple(round(math.log(cost) / math.log(_ALIKE)) if cost > 0 else 0 for cost in costs)


def balanced(costs: Ints, ranks: int, each: int, window: int, seed: int, epoch: int) -> Ints:
    """A permutation of 0..N-1 whose consecutive steps have members of alike cost. `costs` are
    `classes`. In a step of ranks * each the n-th microbatch of rank r stands at place n * ranks +
    r, and ranks get alike sums. What does not fill a last group is the end of the given order,
    untouched: no kind of microbatch is left out more often than others."""
    count, group = len(costs), ranks * each
    tail = count % group
    head = np.arange(count - tail)
    if group == 1 or not len(head):
        return np.arange(count)
    size = group * window
    waiting: Ints = np.empty(0, np.int64)
    steps: list[Ints] = []
    for start in range(0, len(head), size):
        pool = np.concatenate([waiting, head[start : start + size]])
        full, waiting = _equal_steps(pool, costs, group)
        # Rare costs never fill a step: after waiting a window they join those of nearest cost.
        mixed, waiting = _alike_steps(waiting, costs, group, start - size)
        steps.append(_shuffled(np.concatenate([full, mixed]), seed, epoch, _STEPS, start))
    rest, _ = _alike_steps(waiting, costs, group, count)
    order = np.concatenate([*steps, _shuffled(rest, seed, epoch, _STEPS, len(head))])
    order = _shared_out(order, costs, ranks)
    # No rank gets the costliest of each step.
    turn = bits(np.arange(len(order) * ranks), seed, epoch, _RANKS).reshape(-1, 1, ranks)
    rounds = order.reshape(len(order), each, ranks)
    order = np.take_along_axis(rounds, np.argsort(turn, axis=2, kind="stable"), axis=2)
    return np.concatenate([order.reshape(-1), np.arange(count - tail, count)])


def _shuffled(steps: Ints, *key: int) -> Ints:
    return steps[np.argsort(bits(np.arange(len(steps)), *key), kind="stable")]


def _equal_steps(pool: Ints, costs: Ints, group: int) -> tuple[Ints, Ints]:
    """Steps [S, group] of one cost each, oldest first; and what is left over, oldest first."""
    order = np.argsort(costs[pool], kind="stable")
    of_cost = costs[pool][order]
    first = np.searchsorted(of_cost, of_cost, side="left")
    last = np.searchsorted(of_cost, of_cost, side="right")
    place = np.arange(len(pool)) - first
    in_full = place < (last - first) // group * group
    return pool[order[in_full]].reshape(-1, group), pool[np.sort(order[~in_full])]


def _alike_steps(pool: Ints, costs: Ints, group: int, late: int) -> tuple[Ints, Ints]:
    """Of a pool, oldest first: steps by cost that hold all older than place `late`; the others."""
    whole = pool[: len(pool) // group * group]
    steps = whole[np.argsort(costs[whole], kind="stable")].reshape(-1, group)
    goes = (steps <= late).any(axis=1)
    return steps[goes], np.sort(np.concatenate([steps[~goes].reshape(-1), pool[len(whole) :]]))


def _shared_out(steps: Ints, costs: Ints, ranks: int) -> Ints:
    """Each step [S, each * ranks] in rounds: the costliest left goes to the least loaded rank.
    Longest processing time first (Graham 1969), with equally many microbatches for every rank."""
    order = np.argsort(-costs[steps], axis=1, kind="stable")
    steps = np.take_along_axis(steps, order, axis=1)
    relative = np.minimum(costs - costs.min(), 1500)  # 1.02^1500 is 10^13
    price = np.rint(1000 * _ALIKE ** np.arange(1501)).astype(np.int64)[relative]
    load = np.zeros((len(steps), ranks), np.int64)
    made = np.empty_like(steps)
    for first in range(0, steps.shape[1], ranks):
        here = made[:, first : first + ranks]
        least = np.argsort(load, axis=1, kind="stable")
        np.put_along_axis(here, least, steps[:, first : first + ranks], axis=1)
        load += price[here]
    return made


@dataclass(frozen=True, slots=True)
class Idle:
    """What an order costs `world` ranks; the unit of time is that of the costs."""

    share: float  # of all rank time, spent waiting for the slowest rank of a step
    buckets_a_step: float  # distinct buckets in a step, mean
    steps: int
    time: float  # of the epoch, each step as long as its slowest rank


def idle(cells: Ints, costs: NDArray[np.float64], ranks: int, each: int = 1) -> Idle:
    """Of microbatches in order, with the cost of each [N]."""
    group = ranks * each
    steps = len(cells) // group
    if not steps:
        return Idle(0.0, 0.0, 0, 0.0)
    table = costs[: steps * group].reshape(steps, each, ranks).sum(axis=1)
    slowest = table.max(axis=1)
    kinds = np.sort(cells[: steps * group].reshape(steps, group), axis=1)
    distinct = 1 + (np.diff(kinds, axis=1) != 0).sum(axis=1)
    time = float(slowest.sum())
    return Idle(1 - float(table.sum()) / (time * ranks), float(distinct.mean()), steps, time)
