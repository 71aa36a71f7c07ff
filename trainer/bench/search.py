"""The largest batch of a bucket within a time and a memory budget. Pure: trials are passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.bench.child import Kind, Outcome
from trainer.bench.trial import Measured
from trainer.errors import TrainerError
from trainer.runlog import units

_LEAP = 4  # a guess goes at most this many times beyond what was seen to fit
_SPARE = 0.98  # of the budget, where a straight line reaches it


class SearchStopped(TrainerError):
    """A trial failed for another reason than memory; a batch size would be a guess."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a training step; None is no limit (of memory: the allocator's)."""

    step_s: float | None = None
    memory_bytes: int | None = None

    def excess(self, measured: Measured) -> str:
        """Why a measurement is over the budget, empty when it is not."""
        if self.step_s is not None and measured.step_s > self.step_s:
            return f"{units.measured(measured.step_s)} a step, over {units.measured(self.step_s)}"
        if self.memory_bytes is not None and measured.peak_bytes > self.memory_bytes:
            return f"{units.size(measured.peak_bytes)}, over {units.size(self.memory_bytes)}"
        return ""


@dataclass(frozen=True, slots=True)
class Found:
    """The largest batch that fits (0: not one clip), its measurement, what the next one does."""

    batch: int
    measured: Measured | None
    limit: str  # why one more does not fit
    trials: int

    def __str__(self) -> str:
        found = self.measured
        figures = (
            f", {units.measured(found.step_s)}, {units.size(found.peak_bytes)}" if found else ""
        )
        return f"{self.batch}{figures}; one more: {self.limit} ({self.trials} trials)"

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch,
            "step_s": self.measured.step_s if self.measured else None,
            "peak_bytes": self.measured.peak_bytes if self.measured else None,
            "limit": self.limit,
            "trials": self.trials,
        }


def largest_batch(first: int, budget: Budget, trial: Callable[[int], Outcome], most: int) -> Found:
    """Search upwards and downwards from `first` until a batch fits and the next one does not.

    Only out of memory and the budget count as too big. Raises SearchStopped with the reason of any
    other failure.
    """
    seen: dict[int, Measured] = {}
    fits, too_big, limit, trials = 0, most + 1, f"the search ends at {most}", 0
    batch = min(max(1, first), most)
    while True:
        outcome = trial(batch)
        trials += 1
        if outcome.kind in (Kind.FAILED, Kind.TIMED_OUT):
            raise SearchStopped(f"batch {batch}: {outcome.kind.value}: {outcome.reason}")
        reason = outcome.reason or outcome.kind.value
        if outcome.measured is not None:
            seen[batch] = outcome.measured
            reason = budget.excess(outcome.measured)
        if reason:
            too_big, limit = batch, reason
        else:
            fits = batch
        if too_big - fits <= 1:
            return Found(fits, seen.get(fits), limit, trials)
        batch = _next(fits, too_big, budget, seen, known=too_big <= most)


def _next(fits: int, too_big: int, budget: Budget, seen: dict[int, Measured], known: bool) -> int:
    """Where a straight line through what was seen meets the budget, kept within what is known."""
    guess = _extrapolated(budget, seen)
    if guess is None:
        guess = (fits + too_big) // 2 if known else fits * 2
    lowest, highest = fits + 1, too_big - 1
    if not known:
        highest = min(highest, max(1, fits) * _LEAP)
    elif too_big - fits > 4:
        # A line that is wrong must not make the search walk one by one: keep off the ends.
        margin = (too_big - fits) // 8
        lowest, highest = lowest + margin, highest - margin
    return max(lowest, min(highest, guess))


def _extrapolated(budget: Budget, seen: dict[int, Measured]) -> int | None:
    guesses = []
    if budget.step_s is not None and seen:
        guesses.append(_line({0: 0.0} | {n: m.step_s for n, m in seen.items()}, budget.step_s))
    if budget.memory_bytes is not None and seen:
        points = {0: float(next(iter(seen.values())).start_bytes)}
        points |= {n: float(m.peak_bytes) for n, m in seen.items()}
        guesses.append(_line(points, budget.memory_bytes))
    return min((guess for guess in guesses if guess is not None), default=None)


def _line(points: dict[int, float], budget: float) -> int | None:
    """Where a line through the two largest points reaches a little less than the budget."""
    start, end = sorted(points)[-2:]
    slope = (points[end] - points[start]) / (end - start)
    return int(start + (budget * _SPARE - points[start]) / slope) if slope > 0 else None
