"""Which gradient norm is absurd, by those of the steps before: a robust z-score for each kind.

Norms of healthy runs are heavy-tailed (near log-normal), so they are compared by their binary
logarithms: z = (x - median) / (1.4826 MAD), where 1.4826 MAD is the standard deviation of a normal
distribution. Ranks must find the same limit to the last bit. Library logarithms differ between
processors, so `octaves` uses only operations that IEEE 754 defines exactly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = 200  # steps of each kind
# Before, no norm that is finite is absurd. Of 400,000 log-normal norms that follow n others, 2 are
# above z = 10 with n = 20 and none with n = 50 (the MAD of few numbers may be far too small).
LEAST = 50
# Octaves, instead of a smaller deviation: a run with nearly equal norms may double them at a change
# of the learning rate. With z = 10 no norm below 8 times the median is absurd.
LEAST_DEVIATION = 0.3
_DEVIATION = 1.4826  # of a normal distribution, in MADs
FINITE = sys.float_info.max  # the limit where only infinity and NaN are above


def octaves(norm: float) -> float:
    """A binary logarithm that is linear between powers of two: at most 0.09 below the real one, so
    that deviations are within a few percent of theirs."""
    mantissa, exponent = math.frexp(norm)
    return exponent + 2.0 * mantissa - 2.0


def from_octaves(value: float) -> float:
    """The norm of which `octaves` is this."""
    whole = math.floor(value)
    return math.ldexp(1.0 + (value - whole), whole) if whole < sys.float_info.max_exp else FINITE


def _median(values: NDArray[np.float64]) -> float:
    middle = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, middle)[middle])
    below, above = np.partition(values, (middle - 1, middle))[middle - 1 : middle + 1]
    return float(below + above) / 2


def median_and_mad(values: NDArray[np.float64]) -> tuple[float, float]:
    """Of any numbers [N], N > 0: the median, and the median absolute deviation from it."""
    median = _median(values)
    return median, _median(np.abs(values - median))


def _are_norms(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is float and 0 < value <= FINITE for value in values
    )


@dataclass
class NormHistory:
    """Gradient norms of the last steps of each kind; skipped ones are not among them."""

    z: float  # deviations above the median from which on a norm is absurd
    norms: dict[str, list[float]] = field(default_factory=dict)  # oldest first
    _octaves: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # of the same

    def limit(self, kinds: Sequence[str]) -> float:
        """The largest norm that a step of these kinds may have; FINITE where one of them had too
        few steps so far, or there is none."""
        return max((self._limit(kind) for kind in kinds), default=FINITE)

    def median(self, kind: str) -> float:
        """Of a kind that has had a step."""
        return from_octaves(_median(self._octaves[kind]))

    def _limit(self, kind: str) -> float:
        if len(self.norms.get(kind, ())) < LEAST:
            return FINITE
        median, mad = median_and_mad(self._octaves[kind])
        return from_octaves(median + self.z * max(_DEVIATION * mad, LEAST_DEVIATION))

    def add(self, kinds: Sequence[str], norm: float) -> None:
        """The norm of a step that was taken. One of 0 has no logarithm and is left out."""
        if not norm > 0:
            return
        for kind in kinds:
            norms = self.norms.setdefault(kind, [])
            norms.append(norm)
            values = self._octaves.get(kind, np.empty(0))
            self._octaves[kind] = np.append(values[-KEPT + 1 :], octaves(norm))
            del norms[:-KEPT]

    def load(self, norms: Any) -> None:
        """Continue after these steps, by kind. Raises ValueError for what is damaged."""
        if not isinstance(norms, Mapping) or not all(map(_are_norms, norms.values())):
            raise ValueError("norms")
        self.norms = {kind: known[-KEPT:] for kind, known in norms.items()}
        self._octaves = {
            kind: np.array([octaves(norm) for norm in known]) for kind, known in self.norms.items()
        }
