"""Differences of two curves in windows, and what of them is noise. Pure.

Buckets (sizes of clips) have losses of different height, so like is paired with like. Where both
curves have the same bucket at the same place, the difference is taken place by place: what both
share, such as the data of the step, is no noise of it. Else the means of each bucket are compared,
weighted by n_a n_b / (n_a + n_b), which is the inverse of their variance up to a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

PAIRED_SHARE = 0.9  # of the places that both have, with the same bucket, for pairs
CONFIDENCE = 0.95
FEWEST = 6  # windows: with fewer, no interval of a median has that confidence


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at rising places, each of a bucket; all finite."""

    at: Sequence[float]
    values: Sequence[float]
    buckets: Sequence[str]


@dataclass(frozen=True, slots=True)
class Estimate:
    """B minus A in a window: the difference, its standard error, and A's own level."""

    difference: float
    error: float | None  # None: too few values
    base: float
    freedom: int = 0  # degrees of it


@dataclass(slots=True)
class Sums:
    """Sums over a window by bucket, which add up to those of a longer one.

    Each bucket has [n, sum, sum of squares] of A and of B; with pairs the second is of B - A.
    """

    is_paired: bool
    first: float  # place
    last: float
    of: dict[str, list[float]] = field(default_factory=dict)

    def estimate(self) -> Estimate | None:
        """None where no bucket has values of both curves."""
        return self._of_pairs() if self.is_paired else self._of_buckets()

    def _of_pairs(self) -> Estimate | None:
        count, base, total, squares = (
            sum(one[i] for one in self.of.values()) for i in (3, 1, 4, 5)
        )
        if not count:
            return None
        mean = total / count
        spread = max(0.0, squares - total * mean)
        error = math.sqrt(spread / (count - 1) / count) if count > 1 else None
        return Estimate(mean, error, base / count, int(count) - 1)

    def _of_buckets(self) -> Estimate | None:
        both = [one for one in self.of.values() if one[0] and one[3]]
        if not both:
            return None
        weights = [n_a * n_b / (n_a + n_b) for n_a, _, _, n_b, _, _ in both]
        whole = math.fsum(weights)
        pairs = list(zip(weights, both, strict=True))
        difference = math.fsum(w * (b[4] / b[3] - b[1] / b[0]) for w, b in pairs) / whole
        base = math.fsum(w * b[1] / b[0] for w, b in pairs) / whole
        freedom = int(sum(b[0] + b[3] - 2 for b in both))
        if freedom < 1:
            return Estimate(difference, None, base)
        rest = math.fsum(
            max(0.0, b[2] - b[1] ** 2 / b[0]) + max(0.0, b[5] - b[4] ** 2 / b[3]) for b in both
        )
        # The spread within buckets is pooled; the variance of a weighted mean is then s^2 / sum(w).
        return Estimate(difference, math.sqrt(rest / freedom / whole), base, freedom)


Pair = tuple[float, float, float]
"""(place, A, B)."""


def pairs_of(a: Curve, b: Curve) -> list[Pair] | None:
    """Where both have a value of the same bucket; None where that is below 90 % of the places.

    These are the places of the curve with more of them, in the range that both have.
    """
    if not a.at or not b.at:
        return None
    low, high = max(a.at[0], b.at[0]), min(a.at[-1], b.at[-1])
    most = max(sum(low <= at <= high for at in one.at) for one in (a, b))
    place_of = {at: index for index, at in enumerate(b.at)}
    common = [(index, place_of[at]) for index, at in enumerate(a.at) if at in place_of]
    found = [(a.at[i], a.values[i], b.values[k]) for i, k in common if a.buckets[i] == b.buckets[k]]
    return found if found and len(found) >= PAIRED_SHARE * most else None


def cut(
    a: Curve, b: Curve, pairs: Sequence[Pair] | None, low: float, high: float, count: int
) -> list[Sums]:
    """`count` windows of equal length over low to high, both included; `pairs` by `pairs_of`."""
    scale = count / (high - low) if high > low else 0.0
    width = (high - low) / count
    found = [Sums(pairs is not None, low + i * width, low + (i + 1) * width) for i in range(count)]

    def window(at: float) -> dict[str, list[float]]:
        return found[min(count - 1, int((at - low) * scale))].of

    if pairs is not None:
        for at, one, other in pairs:
            if low <= at <= high:
                sums = window(at).setdefault("", [0.0] * 6)
                for offset, value in ((0, one), (3, other - one)):
                    _add(sums, offset, value)
        return found
    for curve, offset in ((a, 0), (b, 3)):
        for at, value, bucket in zip(curve.at, curve.values, curve.buckets, strict=True):
            if low <= at <= high:
                _add(window(at).setdefault(bucket, [0.0] * 6), offset, value)
    return found


def _add(sums: list[float], offset: int, value: float) -> None:
    sums[offset] += 1
    sums[offset + 1] += value
    sums[offset + 2] += value * value


def joined(windows: Sequence[Sums]) -> Iterator[Sums]:
    """Every two neighbours as one; a last single one is left out."""
    for one, other in zip(windows[::2], windows[1::2], strict=False):
        of = {name: list(values) for name, values in one.of.items()}
        for name, values in other.of.items():
            kept = of.setdefault(name, [0.0] * 6)
            kept[:] = [x + y for x, y in zip(kept, values, strict=True)]
        yield Sums(one.is_paired, one.first, other.last, of)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the median, from the values in order: it holds whatever their distribution is.

    The k-th smallest and the k-th largest value, k as large as P(at least k on each side) >= 95 %
    of a fair coin allows (the sign test). None with fewer than six.
    """
    count = len(values)
    kept, tail = 0, 0.0
    for k in range(count // 2):
        tail += math.comb(count, k) / 2**count
        if 1 - 2 * tail < CONFIDENCE:
            break
        kept = k + 1
    if not kept:
        return None
    ordered = sorted(values)
    return ordered[kept - 1], ordered[-kept]


@dataclass(frozen=True, slots=True)
class Middle:
    """The median of windows with its interval of 95 %; None where too few windows have a value."""

    value: float
    low: float | None
    high: float | None
    count: int


def middle(values: Sequence[float]) -> Middle | None:
    """None without values."""
    if not values:
        return None
    found = interval(values)
    low, high = found if found is not None else (None, None)
    return Middle(median(values), low, high, len(values))
