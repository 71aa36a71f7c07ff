"""Finds a spike that stays: 50 steps whose loss or gradient norm is far above the 200 before.

Values are compared by their octaves above the present median of their kinds, so another mixture of
kinds is no spike. A slow trend is none: of numbers that rise evenly the last 50 are 2.5 MADs above
the median of the 200 before. A few huge steps are none: half of the 50 must be above the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.guards.norm_history import LEAST, NormHistory, median_and_mad, octaves

WINDOW = 50  # steps
BEFORE = 200  # steps that these are compared with
EVERY = 10  # steps between comparisons, which take 2 ms with 45 kinds
_LEAST_BEFORE = 100
_MADS = 4.0
# Octaves above the median of before: no smaller mean is a spike. 1.5 times the loss; 8 times the
# norm, as for a skipped step, since the norm of a long training at a high learning rate was 3 times
# its median for 50 steps and fell again, while the loss was never above 1.2 times its own.
_LEAST_RISE = {"loss": 0.6, "grad_norm": 3.0}
_WORDS = {"loss": "loss", "grad_norm": "norm of the gradients"}


@dataclass(frozen=True, slots=True)
class Spike:
    """Where a spike is; it began in step `first` or later."""

    first: int
    last: int
    text: str  # for people, without what is done about it


@dataclass
class Measure:
    """Loss or gradient norm of the steps that were taken; `least` octaves make a spike."""

    least: float
    history: NormHistory = field(default_factory=lambda: NormHistory(0.0))
    recent: list[tuple[int, tuple[str, ...], float]] = field(default_factory=list)

    def add(self, step: int, kinds: Sequence[str], value: float) -> None:
        self.history.add(kinds, value)
        if value > 0:
            self.recent.append((step, tuple(kinds), value))
            del self.recent[: -WINDOW - BEFORE]

    def rise(self) -> tuple[float, int] | None:
        """Where there is a spike: by how many octaves the mean of the last WINDOW steps is above
        the median of those before, and the first of them. Steps of kinds that are too new are left
        out."""
        known = {kind for kind, norms in self.history.norms.items() if len(norms) >= LEAST}
        usual = {kind: octaves(self.history.median(kind)) for kind in known}
        found = [
            (step, octaves(value) - sum(usual[kind] for kind in kinds) / len(kinds))
            for step, kinds, value in self.recent
            if kinds and known.issuperset(kinds)
        ]
        before, last = found[:-WINDOW], [distance for _, distance in found[-WINDOW:]]
        if len(before) < _LEAST_BEFORE:
            return None
        median, mad = median_and_mad(np.array([distance for _, distance in before]))
        limit = median + max(_MADS * mad, self.least)
        mean = sum(last) / WINDOW  # in the order of steps: all ranks find the same bits
        if mean > limit and sum(distance > limit for distance in last) > WINDOW // 2:
            return mean - median, found[-WINDOW][0]
        return None


@dataclass
class SpikeGuard:
    """Decides from numbers that are equal on all ranks."""

    measures: dict[str, Measure] = field(
        default_factory=lambda: {name: Measure(_LEAST_RISE[name]) for name in _WORDS}
    )

    def end(self, step: int, kinds: Sequence[str], values: Mapping[str, float]) -> Spike | None:
        """Take a step into account that was not skipped; a spike that stays, if there is one."""
        for name, measure in self.measures.items():
            measure.add(step, kinds, values[name])
        for name, measure in self.measures.items():
            if step % EVERY == 0 and (found := measure.rise()) is not None:
                rise, first = found
                times = f"{2.0**rise:.3g} times the median of the {BEFORE} steps before"
                text = f"the {_WORDS[name]} of steps {first} to {step} is {times}"
                return Spike(first, step, text)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Plain data; a copy."""
        return {
            name: {
                "norms": {kind: list(norms) for kind, norms in one.history.norms.items()},
                "recent": [[step, list(kinds), value] for step, kinds, value in one.recent],
            }
            for name, one in self.measures.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError naming what is damaged."""
        for name, measure in self.measures.items():
            one = state.get(name)
            if not isinstance(one, Mapping):
                raise ValueError(name)
            measure.history.load(one.get("norms"))
            measure.recent = []
            try:
                for step, kinds, value in one["recent"]:
                    if (
                        type(step) is not int
                        or type(value) is not float
                        or not math.isfinite(value)
                    ):
                        raise ValueError
                    measure.recent.append((step, tuple(map(str, kinds)), value))
            except (KeyError, TypeError, ValueError):
                raise ValueError(name) from None
