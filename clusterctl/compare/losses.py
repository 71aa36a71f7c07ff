"""The losses of two runs at equal steps and at equal clips seen. Pure.

Three answers, each by windows (`windows.py`):

- the difference over the last half of what both have: the median of 20 windows, with the interval
  of 95 % of that median;
- where they part: the first window whose difference is more than 5 standard errors and more than
  0.1 % of A's loss. Windows have at least 20 steps; where none of that length parts, windows of
  twice the length are asked, and so on. Of 800 simulated pairs of 2,560 steps that differed by
  noise alone (three buckets, in one order and in two), 3 parted;
- up to which step the losses are the same to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.compare.read import Run
from clusterctl.compare.windows import Curve, Estimate, Middle, Sums, cut, joined, middle, pairs_of

WINDOWS = 20  # over the last half
MOST_WINDOWS = 128  # over all that both have
STEPS = 20  # of a window in which curves can part
FREEDOM = 10  # degrees of it below which an error is not trusted
ERRORS = 5.0
SHARE = 0.001  # of A's loss
LARGEST = 1e100  # the square of what is above is not finite
BY_STEPS, BY_CLIPS = "steps", "clips"


@dataclass(frozen=True, slots=True)
class Window:
    """Places from `first` to `last`, and the difference there."""

    first: float
    last: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Losses:
    """One alignment. `why` says why there is no difference, "" where there is one."""

    by: str  # steps or clips
    why: str = ""
    first: float = 0.0  # place: number of the step, or clips seen
    last: float = 0.0
    is_paired: bool = False
    half: Middle | None = None  # B - A over the last half
    base: float = 0.0  # A's loss there
    bad: tuple[int, int] = (0, 0)  # losses of A and of B there that are not finite
    parts: Window | None = None
    why_no_parting: str = ""
    windows: tuple[Window, ...] = ()

    def share(self, difference: float | None) -> float | None:
        """A difference as part of A's loss."""
        return None if difference is None or not self.base else difference / abs(self.base)


@dataclass(frozen=True, slots=True)
class Same:
    """Steps that both have from the first on; None: not even that one is the same."""

    common: int
    loss_to: int | None  # number of the last step up to which losses are bit-equal
    grad_to: int | None
    is_all: bool  # losses of all common steps


def same(a: Run, b: Run) -> Same:
    """Up to which step losses and gradient norms are the same to the last bit."""
    index_of = {step: index for index, step in enumerate(b.steps)}
    common = [(i, index_of[step]) for i, step in enumerate(a.steps) if step in index_of]
    ends = [_same_to(a, b, name, common) for name in ("loss", "grad_norm")]
    last = int(a.steps[common[-1][0]]) if common else None
    return Same(len(common), ends[0], ends[1], last is not None and ends[0] == last)


def _same_to(a: Run, b: Run, name: str, common: Sequence[tuple[int, int]]) -> int | None:
    one, other = a.columns[name], b.columns[name]
    count = sum(1 for _ in itertools.takewhile(lambda p: one[p[0]] == other[p[1]], common))
    return int(a.steps[common[count - 1][0]]) if count else None


def by_steps(a: Run, b: Run) -> Losses:
    """At equal step numbers."""
    return _compared(BY_STEPS, (a, b), (a.steps, b.steps))


def by_clips(a: Run, b: Run) -> Losses:
    """After equal numbers of clips, of all ranks together, counted from where both begin."""
    begins = {int(run.steps[0]) for run in (a, b)}
    if len(begins) > 1:
        first, second = sorted(begins)
        return Losses(BY_CLIPS, f"one begins at step {first:,}, the other at {second:,}")
    for name, run in (("A", a), ("B", b)):
        missing = int(run.steps[-1] - run.steps[0]) + 1 - len(run.steps)
        samples = run.columns["samples"]
        if missing or not all(count > 0 for count in samples):
            lost = missing or sum(not count > 0 for count in samples)
            return Losses(BY_CLIPS, f"{name} does not say how many clips {lost:,} of its steps had")
    seen = [list(itertools.accumulate(run.columns["samples"])) for run in (a, b)]
    return _compared(BY_CLIPS, (a, b), (seen[0], seen[1]))


def _compared(by: str, runs: tuple[Run, Run], places: tuple[Sequence[float], ...]) -> Losses:
    low = max(at[0] for at in places)
    high = min(at[-1] for at in places)
    if low > high:
        ranges = [
            f"{name} {at[0]:,.0f} to {at[-1]:,.0f}" for name, at in zip("AB", places, strict=True)
        ]
        return Losses(by, f"they have no {by} in common: {', '.join(ranges)}")
    a, b = (_curve(run, at) for run, at in zip(runs, places, strict=True))
    begin = low + (high - low) / 2
    bad = [
        sum(
            not abs(x) < LARGEST
            for x, p in zip(run.columns["loss"], at, strict=True)
            if begin <= p <= high
        )
        for run, at in zip(runs, places, strict=True)
    ]
    pairs = pairs_of(a, b)
    fewest = min(_within(one.at, begin, high) for one in (a, b))
    half = cut(a, b, pairs, begin, high, max(1, min(WINDOWS, fewest)))
    found = [one for window in half if (one := window.estimate()) is not None]
    if not found:
        return Losses(
            by, f"no window of {by} has a bucket of both", low, high, bad=(bad[0], bad[1])
        )
    fewest = min(_within(one.at, low, high) for one in (a, b))
    fine = cut(a, b, pairs, low, high, max(1, min(MOST_WINDOWS, fewest // STEPS)))
    parts, why = _parting(fine) if fewest >= 2 * STEPS else (None, f"fewer than {2 * STEPS} steps")
    return Losses(
        by,
        "",
        low,
        high,
        pairs is not None,
        middle([one.difference for one in found]),
        sum(one.base for one in found) / len(found),
        (bad[0], bad[1]),
        parts,
        why,
        tuple(_windows(fine)),
    )


def _curve(run: Run, places: Sequence[float]) -> Curve:
    names, losses = run.buckets, run.columns["loss"]
    kept = [
        (at, loss, names[int(bucket)])
        for at, loss, bucket in zip(places, losses, run.columns["bucket"], strict=True)
        if abs(loss) < LARGEST
    ]
    return Curve([one[0] for one in kept], [one[1] for one in kept], [one[2] for one in kept])


def _within(places: Sequence[float], low: float, high: float) -> int:
    return sum(low <= at <= high for at in places)


def _windows(sums: Sequence[Sums]) -> list[Window]:
    found = ((one, one.estimate()) for one in sums)
    return [Window(one.first, one.last, known) for one, known in found if known is not None]


def _parting(sums: Sequence[Sums]) -> tuple[Window | None, str]:
    """The first window beyond noise, of the shortest length that has one; why none was judged."""
    judged = 0
    while sums:
        for window in _windows(sums):
            known = window.estimate
            if known.error is None or known.freedom < FREEDOM:
                continue
            judged += 1
            least = max(ERRORS * known.error, SHARE * abs(known.base))
            if abs(known.difference) > least:
                return window, ""
        sums = list(joined(sums))
    return None, "" if judged else "no window has enough steps of a bucket of both"
