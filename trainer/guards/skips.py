"""Skips a step whose gradient norm is not finite or absurd, on all ranks; ends after a few of them.

Before the update the host states the largest norm that the step may have, from the steps before.
The device compares (`Engine.step`) and leaves weights and optimizer state as they are, so nothing
waits. When the host reads the norm, at the end of the step, it finds the same by the same
comparison and leaves out the average and the step of the learning rate, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.guards.norm_history import FINITE, KEPT, NormHistory

WINDOW = 50  # steps
MOST = 3  # skipped steps in them; one more ends the run


@dataclass(frozen=True, slots=True)
class Skip:
    """A step that was skipped."""

    step: int
    norm: float
    limit: float
    kinds: tuple[str, ...]
    text: str  # one sentence for people


@dataclass
class SkipGuard:
    """Decides from numbers that are equal on all ranks, so all ranks decide alike."""

    history: NormHistory
    skipped: list[int] = field(default_factory=list)  # steps, of the last WINDOW
    count: int = 0  # of steps skipped in the whole run
    _kinds: tuple[str, ...] = ()
    _limit: float = FINITE

    def begin(self, kinds: Sequence[str]) -> float:
        """The largest norm that the step of these kinds may have."""
        self._kinds, self._limit = tuple(kinds), self.history.limit(kinds)
        return self._limit

    def is_skipped(self, norm: float) -> bool:
        """Whether the device has left out the update of the step that has begun."""
        return not norm <= self._limit

    def end(self, step: int, norm: float) -> Skip | None:
        """Take the step's norm into account; what to report of a step that was skipped."""
        self.skipped = [other for other in self.skipped if other > step - WINDOW]
        if not self.is_skipped(norm):
            self.history.add(self._kinds, norm)
            return None
        self.skipped.append(step)
        self.count += 1
        return Skip(step, norm, self._limit, self._kinds, self._text(step, norm))

    def _text(self, step: int, norm: float) -> str:
        what = f"step {step} is skipped on all ranks: the norm of its gradients is {norm:.4g}"
        if math.isfinite(norm):
            medians = (f"{self.history.median(kind):.3g} of {kind}" for kind in self._kinds)
            what += f", above the limit {self._limit:.3g} (medians of the last {KEPT} steps: "
            what += f"{', '.join(medians)})"
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{what}; weights, optimizer, average and learning rate stay; {times} in this run"

    @property
    def is_exceeded(self) -> bool:
        """Whether too many of the last steps were skipped."""
        return len(self.skipped) > MOST

    def state_dict(self) -> dict[str, Any]:
        """Plain data; a copy."""
        norms = {kind: list(norms) for kind, norms in self.history.norms.items()}
        return {"norms": norms, "skipped": list(self.skipped), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError naming what is damaged."""
        norms, skipped, count = (state.get(name) for name in ("norms", "skipped", "count"))
        if not isinstance(skipped, list) or not all(type(step) is int for step in skipped):
            raise ValueError("skipped")
        if type(count) is not int or count < 0:
            raise ValueError("count")
        self.history.load(norms)
        self.skipped, self.count = list(skipped), count
