"""Two runs side by side, and whether the second keeps to limits. Pure.

A limit is kept where the whole interval of 95 % is within it, exceeded where the whole interval is
above it. In between, and where a value is not known, the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.compare import losses as of_losses
from clusterctl.compare.losses import Losses, Same
from clusterctl.compare.read import Run
from clusterctl.compare.speed import Rates, Speed, rates, speed
from clusterctl.compare.windows import Middle
from clusterctl.errors import CouldNotFindOut
from clusterctl.why.changes import Changes, between

GOOD, BAD, UNKNOWN = "good", "bad", "unknown"
LOSS, TIME = "loss increase", "slowdown"
NOISY = "the interval reaches over the limit, so more steps are needed"


@dataclass(frozen=True, slots=True)
class Limits:
    """As shares: 0.01 is 1 %. None: no limit."""

    loss_increase: float | None = None
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    limit: float
    verdict: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A. `steps` and `clips` are the losses at equal steps and after equal clips."""

    a: Run
    b: Run
    rates: tuple[Rates, Rates]
    same: Same
    steps: Losses
    clips: Losses
    speed: Speed
    changes: Changes
    verdicts: tuple[Verdict, ...]

    @property
    def has_equal_batches(self) -> bool:
        """Equal steps have seen equal clips, so both alignments are one."""
        steps, clips = self.steps, self.clips
        is_paired = steps.is_paired and clips.is_paired
        return is_paired and not clips.why and steps.half == clips.half

    @property
    def judged(self) -> Losses:
        """After equal clips, where that is known and differs; else at equal steps."""
        return self.steps if self.clips.why or self.has_equal_batches else self.clips

    @property
    def exit_code(self) -> int:
        """1: a limit is exceeded; 3: one is not known, or there is nothing to compare."""
        found = {one.verdict for one in self.verdicts}
        if BAD in found:
            return 1
        is_nothing = not self.verdicts and bool(self.judged.why)
        return CouldNotFindOut.exit_code if UNKNOWN in found or is_nothing else 0


def compare(a: Run, b: Run, limits: Limits) -> Comparison:
    """B against A, with the code, config, nodes and data that differ."""
    same, by_steps = of_losses.same(a, b), of_losses.by_steps(a, b)
    by_clips, speeds = of_losses.by_clips(a, b), speed(a, b)
    verdicts = []
    if limits.loss_increase is not None:
        judged = by_steps if by_clips.why else by_clips
        verdicts.append(_loss(judged, same, limits.loss_increase))
    if limits.slowdown is not None:
        verdict, why = _within(speeds.slowdown, 1.0, limits.slowdown)
        verdicts.append(Verdict(TIME, limits.slowdown, verdict, speeds.why or why))
    return Comparison(
        a,
        b,
        (rates(a), rates(b)),
        same,
        by_steps,
        by_clips,
        speeds,
        between(a.run_dir, b.run_dir),
        tuple(verdicts),
    )


def exit_code(found: Sequence[Comparison]) -> int:
    """The worst of several: 1 before 3 before 0."""
    codes = {one.exit_code for one in found}
    return 1 if 1 in codes else max(codes, default=0)


def _loss(found: Losses, same: Same, limit: float) -> Verdict:
    bad_a, bad_b = found.bad
    if bad_a:
        return Verdict(LOSS, limit, UNKNOWN, f"{bad_a:,} losses of A are not finite")
    if bad_b:
        return Verdict(LOSS, limit, BAD, f"{bad_b:,} losses are not finite")
    if found.why:
        return Verdict(LOSS, limit, UNKNOWN, found.why)
    if same.is_all:
        return Verdict(LOSS, limit, GOOD)
    if found.base <= 0:
        return Verdict(
            LOSS, limit, UNKNOWN, "cannot compute a percentage: A's loss is not positive"
        )
    return Verdict(LOSS, limit, *_within(found.half, found.base, limit))


def _within(found: Middle | None, base: float, limit: float) -> tuple[str, str]:
    if found is None or found.low is None or found.high is None:
        return UNKNOWN, "too few steps for an interval: six windows are needed"
    if found.low / base > limit:
        return BAD, ""
    return (GOOD, "") if found.high / base <= limit else (UNKNOWN, NOISY)
