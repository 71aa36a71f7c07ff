"""The interval between checkpoints that loses least time, and what share of time it leaves. Pure.

Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM
17(9), 1974: T* = sqrt(2 c M), with c the time that a save stops training and M the mean time
between failures, both in seconds. ETTR is the effective training time ratio, training time that
is kept divided by wall time: 1 - c/T - (T/2 + w + D + R)/M. A failure loses half an interval
(T/2) and, because a checkpoint counts only when it is complete, the time w that writing one takes
beside training; then D until it is noticed and R until the first new step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of T*, for the table


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that decide about the interval."""

    stall_s: float  # c: a save stops training for
    mtbf_s: float  # M: from one failure to the next
    write_s: float  # w: from then until it is complete, training going on meanwhile
    detect_s: float  # D
    restart_s: float  # R

    @property
    def best_s(self) -> float:
        """T*; no shorter than a save takes, because only one is written at a time."""
        return max(math.sqrt(2 * self.stall_s * self.mtbf_s), self.write_s + self.stall_s)

    @property
    def is_limited_by_writing(self) -> bool:
        return math.sqrt(2 * self.stall_s * self.mtbf_s) < self.write_s + self.stall_s

    def save_share(self, interval_s: float) -> float:
        """Share of wall time that saves take, 0 to 1 where the interval is longer than a save."""
        return self.stall_s / interval_s

    def failure_share(self, interval_s: float) -> float:
        """Share of wall time that failures take; above 1 no training is kept."""
        lost_s = interval_s / 2 + self.write_s + self.detect_s + self.restart_s
        return lost_s / self.mtbf_s

    def ettr(self, interval_s: float) -> float:
        """At most 1; 0 where failures come faster than they are recovered from."""
        return max(0.0, 1 - self.save_share(interval_s) - self.failure_share(interval_s))


def steps_of(interval_s: float, step_s: float) -> int:
    """The interval in whole steps, at least 1, two digits: the optimum is flat."""
    steps = max(1.0, interval_s / step_s)
    unit: int = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return max(1, round(steps / unit) * unit)


def row_steps(best: int, now: int, total: int | None) -> list[int]:
    """Values of `ckpt_every` for the table: around the best one, with the present one."""
    found = {steps_of(best * factor, 1.0) for factor in FACTORS} | ({now} if now > 0 else set())
    return sorted(steps for steps in found if total is None or steps <= total or steps == now)
