"""Which ranks are slower than the others, step after step, by the work that each does itself.

Pure: seconds in, names out. In synchronous training all ranks take the same time for a step; the
slow one is the one that the others wait for. So a rank's own work is compared, without its waiting,
with what microbatches of the same buckets usually take, and with the other ranks at the same step:
what slows all of them names none of them.

A block is the mean of BLOCK steps. A rank is named when nearly all of the last BLOCKS blocks are
a limit above the others, more of them than chance gives: how often a block of the other ranks is so
far above is counted, and the binomial tail of that share is at most FALSE_NAMES over all ranks.
Heavy tails raise the share, so they cost sensitivity and give no false names. Ranks that differ a
little all the time, as processors do, are named only when one is far outside of what the others
show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

COMPARED = ("data", "encode", "forward", "backward")  # phases, without waiting for other ranks
BLOCK, BLOCKS = 5, 16  # steps; blocks
WINDOW = BLOCK * BLOCKS  # steps
# Below the 5 % that must be found; larger ones where blocks scatter so much that they pass that
# by chance.
LIMITS = (0.02, 0.05, 0.1, 0.2, 0.4)
LIMIT = LIMITS[0]
LEAST = 0.03  # the middle block of a rank that is named
LEAST_COMMON = 0.05  # the same of all ranks together, against themselves before
FEWEST = 14  # blocks of the window: slowness that moves on within 50 steps names nobody
KEPT, KEPT_LEAST = 8, 0.02  # a rank stays named so long
FALSE_NAMES = 1e-7  # of one judgement over all ranks; there is one every BLOCK steps
FAR = 4.5  # deviations of the middle blocks of the ranks
ALSO = 0.25
FIRST_STEPS = 10  # of a process: compilers and caches work there
FORGOTTEN, SLOWEST_GAIN = 5, 0.005  # sightings of a bucket; what a later one changes at least


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank, or with `rank` None all of them against their own past."""

    rank: int | None
    share: float  # of the compared work, above the others; the middle block
    seconds: float  # the same, of a step
    phase: str  # where most of it is
    also: tuple[str, ...] = ()  # other phases with at least ALSO of it


class Judge:
    """Takes every step of a run in order; `named` are those that are slow now."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.named: tuple[Slow, ...] = ()
        self._steps = 0
        self._usual: Floats = np.zeros((0, len(COMPARED)))  # seconds by cell
        self._seen: Ints = np.zeros(0, np.int64)
        self._in_block = 0
        self._sum = self._empty()
        self._window: list[Floats] = []  # of blocks [R + 1, P + 2]

    def add(self, own_s: Floats, cells: Ints) -> bool:
        """Seconds [R, P] of a step by rank and phase, and the buckets [R, E] of its microbatches.
        Returns whether there is a new judgement."""
        self._steps += 1
        excess, usual_s = self._compare(own_s, cells)
        if self._steps <= FIRST_STEPS:
            return False
        both = np.column_stack([excess.sum(axis=1), excess])
        self._sum[:-1, :-1] += both - of_others(both)
        self._sum[:-1, -1] += usual_s
        # All are slow when their faster quarter is.
        quarter = self.ranks // 4
        self._sum[-1, :-1] += np.partition(both, quarter, axis=0)[quarter]
        self._sum[-1, -1] += np.median(usual_s)
        self._in_block += 1
        if self._in_block < BLOCK:
            return False
        self._window = [*self._window[1 - BLOCKS :], self._sum / BLOCK]
        self._in_block, self._sum = 0, self._empty()
        if len(self._window) < BLOCKS:
            return False
        self.named = self._judge(np.stack(self._window))
        return True

    def _empty(self) -> Floats:
        return np.zeros((self.ranks + 1, len(COMPARED) + 2))

    def _compare(self, own_s: Floats, cells: Ints) -> tuple[Floats, Floats]:
        """Excess [R, P] over what these buckets usually take, as a share of that, and the usual
        seconds [R]. Then learns from this step."""
        each = cells.shape[1]
        self._make_room(int(cells.max()) + 1)
        kinds = np.unique(cells)
        holders = [(kind, (cells == kind).any(axis=1)) for kind in kinds]
        for kind, holds in holders:
            if not self._seen[kind]:
                self._usual[kind] = np.median(own_s[holds], axis=0) / each
        usual = self._usual[cells].sum(axis=1)
        usual_s = np.maximum(usual.sum(axis=1), 1e-9)
        excess = (own_s - usual) / usual_s[:, None]
        for kind, holds in holders:
            self._seen[kind] += 1
            gain = max(1 / max(1, self._seen[kind] - FORGOTTEN), SLOWEST_GAIN)
            left = np.median((own_s - usual)[holds], axis=0) / each
            self._usual[kind] = np.maximum(0.0, self._usual[kind] + gain * left)
        return excess, usual_s

    def _make_room(self, cells: int) -> None:
        more = cells - len(self._seen)
        if more > 0:
            self._usual = np.concatenate([self._usual, np.zeros((more, len(COMPARED)))])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])

    def _judge(self, window: Floats) -> tuple[Slow, ...]:
        """Of blocks [B, R + 1, P + 2]."""
        middle = np.median(window, axis=0)
        count = (window[:, :, 0] > LIMIT).sum(axis=0)
        common = count[-1] >= FEWEST and middle[-1, 0] >= LEAST_COMMON
        of_ranks, count = middle[:-1, 0], count[:-1]
        might = np.zeros(self.ranks, bool)
        if (of_ranks >= LEAST).any():
            might = (of_ranks >= LEAST) & self._beyond_chance(window[:, :-1, 0])
        far = of_ranks - np.median(of_ranks) >= FAR * spread(of_ranks)
        before = [one.rank for one in self.named if one.rank is not None]
        is_kept = np.isin(np.arange(self.ranks), before)
        is_kept &= (count >= KEPT) & (of_ranks >= KEPT_LEAST)
        found = np.flatnonzero((might & far) | is_kept)
        found = found[np.argsort(-of_ranks[found], kind="stable")]
        ranks = tuple(_slow(int(rank), middle[rank]) for rank in found)
        return (*ranks, _slow(None, middle[-1])) if common else ranks

    def _beyond_chance(self, blocks: Floats) -> NDArray[np.bool_]:
        """Of blocks [B, R]: whether so many of a rank are over one of LIMITS as chance does not
        bring about."""
        found = np.zeros(self.ranks, bool)
        for limit in LIMITS:
            over = blocks > limit
            count = over.sum(axis=0)
            # Those that might be named do not tell what chance does.
            rest = over[:, count < FEWEST]
            by_chance = (int(rest.sum()) + 1) / (rest.size + 2)
            found |= count >= blocks_needed(by_chance, FALSE_NAMES / len(LIMITS) / self.ranks)
        return found


def _slow(rank: int | None, row: Floats) -> Slow:
    share, phases, usual_s = float(row[0]), row[1:-1], float(row[-1])
    first, *rest = np.argsort(-phases, kind="stable")
    also = tuple(COMPARED[phase] for phase in rest if phases[phase] >= ALSO * share)
    return Slow(rank, share, share * usual_s, COMPARED[first], also)


def of_others(values: Floats) -> Floats:
    """For each of the values [R, C], the median of the others in its column; 0 where none are."""
    count = len(values)
    if count == 1:
        return np.zeros_like(values)
    middle = count // 2
    near = [at for at in (middle - 1, middle, middle + 1) if at < count]
    ranked = np.partition(values, near, axis=0)
    below, at = ranked[middle - 1], ranked[middle]
    if count % 2 == 0:
        return np.where(values <= below, at, below)
    above = ranked[middle + 1]
    without = np.where(values < at, (at + above) / 2, (below + at) / 2)
    return np.where(values == at, (below + above) / 2, without)


def spread(values: Floats) -> float:
    """Standard deviation of those that are not slow: of the lower half, as of a normal
    distribution (the median distance from the median of its lower half is 0.4 of it)."""
    low = np.sort(values)[: (len(values) + 1) // 2]
    return 2.5 * float(np.median(np.abs(low - np.median(low))))


def blocks_needed(chance: float, false_names: float) -> int:
    """At least FEWEST blocks, such that so many of BLOCKS are over the limit by `chance` with at
    most the probability `false_names`; more than BLOCKS where no number is enough."""
    tail = 0.0
    for count in range(BLOCKS, FEWEST - 1, -1):
        tail += math.comb(BLOCKS, count) * chance**count * (1 - chance) ** (BLOCKS - count)
        if tail > false_names:
            return count + 1
    return FEWEST
