"""Random numbers that are functions of what they are for, not of what was drawn before.

The number for (row, seed, epoch, …) is the same in any order and process, and a million of them are
one numpy expression: SplitMix64's finaliser (Steele, Lea, Flood 2014) for every word of the key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def bits(rows: Ints, *key: int) -> NDArray[np.uint64]:
    """64 random bits for each row under this key; words of a key may be any integer."""
    state = 0
    for word in key:  # the key is the same for all rows: mixed once, in Python's integers
        state = int(_mix(np.array([(state ^ (word & _WORD)) + _GOLDEN & _WORD], np.uint64))[0])
    with np.errstate(over="ignore"):  # wrapping is the arithmetic meant
        return _mix(rows.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(state))


def uniform(rows: Ints, *key: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, of 53 bits."""
    return (bits(rows, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
        return mixed
