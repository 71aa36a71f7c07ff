"""Figures of a run: progress, speed, time left, and what the time is spent on. Pure."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.runs.attempts import Account, account
from dashboards.model import units
from dashboards.model.state import INTERRUPTED, RunState
from trainer.runlog.figures import FIGURES
from trainer.runlog.telemetry import PHASES, Event, StepRecord
from trainer.runlog.validation import Point

# Rates are means over this many steps: enough to smooth buckets of different size.
WINDOW = 50
# A step may take this many times the usual one, or this many seconds, before it counts as stalled,
# because of checkpoints and validation between steps.
STALLED_TIMES = 6.0
STALLED_S = 30.0
STARTING_S = 900.0  # of an attempt; after that without a step it is stalled
_BAD = ("failure", "failed", "error", "lost", "incident", "restart", "stalled", "save-failed")
FAR_S = 1e10  # 300 years: no date is shown for that


@dataclass(frozen=True, slots=True)
class Figures:
    """What the run screen shows beside the curves. None: not known yet."""

    status: str  # waiting, running, stalled, restarting, finished, stopped, failed, unknown
    step: int
    steps_total: int
    step_s: float | None = None  # median over the window
    p99_s: float | None = None
    longest_s: float | None = None
    clips_per_s: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    phases: tuple[tuple[str, float], ...] = ()  # mean seconds, in the order of a step, then "other"
    idle_share: float | None = None
    slowest_rank: int | None = None
    slowest_steps: int = 0  # of how many steps of the window it was the slowest
    window: int = 0
    smooth_loss: float | None = None
    flops_s: float | None = None  # of one rank
    data_share: float | None = None  # of a step, spent waiting for data
    buckets: tuple[tuple[str, float], ...] = ()  # share of the recent steps, largest first
    checkpoint: tuple[int | None, float] | None = None  # step and time of the newest
    restarts: int = 0
    attempt: int | None = None  # number of the newest one
    spares: int | None = None  # nodes that are left to replace others; None: no launcher said so
    excluded: tuple[str, ...] = ()  # nodes that were left out in this run
    ettr: float | None = None  # effective training time ratio, 0 to 1
    lost_s: tuple[tuple[str, float], ...] = ()  # by cause, largest first
    why_unknown: str = ""  # all other figures are then of earlier

    @property
    def part(self) -> float | None:
        return min(1.0, self.step / self.steps_total) if self.steps_total > 0 else None


def figures(run: RunState, now_s: float) -> Figures:
    """Everything derived from a run's records at the time `now_s`."""
    now, known = _of_steps(run, now_s), accounted(run)
    since_s = known.restarting_since_s
    is_new = since_s is not None and now_s - since_s < STARTING_S
    if is_new and now.status in ("running", "stalled", "waiting"):
        now = replace(now, status="restarting", eta_s=None)
    if run.unread:
        now = replace(now, status="unknown", eta_s=None, why_unknown=run.unread)
    return replace(
        now,
        restarts=known.restarts,
        attempt=known.attempts[-1].number if known.attempts else None,
        spares=None if known.spares is None else len(known.spares),
        excluded=tuple(node for node, _ in known.excluded),
        ettr=known.ettr(now_s),
        lost_s=tuple(known.lost_s(now_s).items()),
    )


@functools.lru_cache(maxsize=4)
def accounted(run: RunState) -> Account:
    """Its attempts, and where its time went."""
    return account(run.steps, run.journal)


def _of_steps(run: RunState, now_s: float) -> Figures:
    if run.last is None:
        return Figures(run.ended or "waiting", 0, 0)
    base = _of_records(run)
    age_s = None if run.last_s is None else now_s - run.last_s
    if base.status == "running" and base.step_s is not None and age_s is not None:
        if age_s > max(STALLED_S, STALLED_TIMES * base.step_s):
            return replace(base, status="stalled", eta_s=None)
        if base.eta_s is not None:
            return replace(base, eta_s=max(0.0, base.eta_s - age_s))
    return base


@functools.lru_cache(maxsize=4)
def _of_records(run: RunState) -> Figures:
    """What does not change between two steps; several panels ask for it each tick."""
    assert run.last is not None
    window = run.recent[-WINDOW:]
    step_s = statistics.median(record.step_s for record in window)
    pace_s = _pace_s(window, run.steps.first_steps)
    left = max(0, run.last.steps_total - run.last.step)
    times = sorted(record.step_s for record in run.recent)
    status = run.ended or ("finished" if left == 0 and run.last.steps_total else "running")
    ranks = Counter(r.slowest_rank for r in window if r.slowest_rank is not None)
    rank, slowest_steps = ranks.most_common(1)[0] if ranks else (None, 0)
    idle = [record.idle_share for record in window if record.idle_share is not None]
    buckets = Counter(record.bucket for record in run.recent if record.bucket)
    flops = statistics.fmean(record.flops for record in window)  # of a step on all ranks
    return Figures(
        status=status,
        step=run.last.step,
        steps_total=run.last.steps_total,
        step_s=step_s,
        p99_s=times[min(len(times) - 1, int(0.99 * len(times)))],
        longest_s=times[-1],
        clips_per_s=_per_second([record.samples for record in window], pace_s),
        tokens_per_s=_per_second([record.tokens for record in window], pace_s),
        eta_s=left * pace_s if status == "running" and 0 < left * pace_s < FAR_S else None,
        phases=_phases(window),
        idle_share=statistics.fmean(idle) if idle else None,
        slowest_rank=rank if run.last.world > 1 else None,
        slowest_steps=slowest_steps,
        window=len(window),
        smooth_loss=run.smooth / run.smooth_weight if run.smooth_weight else None,
        flops_s=flops / pace_s / max(1, run.last.world) if flops > 0 and pace_s > 0 else None,
        data_share=_data_share(window),
        buckets=tuple((name, count / buckets.total()) for name, count in buckets.most_common()),
        checkpoint=_checkpoint(run),
    )


def newest(run: RunState, name: str) -> Any:
    """A figure of a step as it was last known among the recent ones; None where it was not. Of a
    figure of several numbers the mean of each."""
    window = run.recent[-WINDOW:]
    if not FIGURES[name].part:
        known = (
            value for record in reversed(window) if (value := getattr(record, name)) is not None
        )
        return next(known, None)
    parts: dict[str, list[float]] = {}
    for record in window:
        for part, value in getattr(record, name).items():
            parts.setdefault(part, []).append(value)
    return {part: statistics.fmean(values) for part, values in sorted(parts.items())}


def in_words(known: Point) -> str:
    """Validation losses: of the weights, of their average, after which step."""
    ema = "" if known.ema is None else f"  EMA {units.number(known.ema)}"
    return f"{units.number(known.model)}{ema}  step {known.step:,}"


def is_bad(event: Event) -> bool:
    """Whether an event is a problem."""
    if event.name == "end":
        return event.data.get("exit_code", 0) not in (0, INTERRUPTED)
    if event.name == "rank-ended":
        return event.data.get("code") not in (0, INTERRUPTED)
    if event.name == "failure" and event.data.get("exit_code") == INTERRUPTED:
        return False  # the launcher's word for any end but a good one
    return event.name in _BAD


def one_line(event: Event) -> str:
    """The event in one line; of a traceback the first and the last, which names the error."""
    lines = [line.strip() for line in event.text.splitlines() if line.strip()]
    return " … ".join(lines[:1] + lines[1:][-1:])


def _pace_s(window: Sequence[StepRecord], first_steps: Collection[int]) -> float:
    """Seconds from step to step, with checkpoints and validation between them.

    The times of the records come from one writer, so their difference is right; where they are
    missing or jump, it is the mean duration of a step. What a restart took is not among them.
    """
    own = statistics.fmean(record.step_s for record in window)
    begins = [index for index, record in enumerate(window) if record.step in first_steps]
    window = window[begins[-1] :] if begins else window
    first, last = window[0], window[-1]
    steps = last.step - first.step
    if steps <= 0 or first.time_s <= 0:
        return own
    pace = (last.time_s - first.time_s) / steps
    return pace if 0.8 * own <= pace <= 20 * own else own


def _per_second(counts: Sequence[int], pace_s: float) -> float | None:
    return statistics.fmean(counts) / pace_s if pace_s > 0 and any(counts) else None


def _data_share(window: Sequence[StepRecord]) -> float | None:
    steps_s = sum(record.step_s for record in window)
    known = [record.seconds["data"] for record in window if "data" in record.seconds]
    return sum(known) / steps_s if known and steps_s > 0 else None


def _checkpoint(run: RunState) -> tuple[int | None, float] | None:
    saved = (sample for sample in reversed(run.events) if sample.event.name == "checkpoint")
    return next(((one.event.step, one.event.time_s or one.at_s) for one in saved), None)


def mfu(now: Figures, peak_flops: float | None) -> float | None:
    """Model FLOP utilisation, 0 to 1; None where the peak or the count is not known."""
    return now.flops_s / peak_flops if now.flops_s and peak_flops else None


def _phases(window: Sequence[StepRecord]) -> tuple[tuple[str, float], ...]:
    known = {name for record in window for name in record.seconds}
    names = [name for name in PHASES if name in known] + sorted(known - set(PHASES))
    means = {name: statistics.fmean(one.seconds.get(name, 0.0) for one in window) for name in names}
    other = statistics.fmean(record.step_s for record in window) - sum(means.values())
    return (*means.items(), *([("other", other)] if means and other > 0 else []))
