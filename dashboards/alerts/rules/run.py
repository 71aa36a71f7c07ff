"""Rules about the run: steps, loss, waiting for data or a rank, W&B."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from dashboards.alerts.rules.base import RuleContext, always_known, gpu_part, run_known
from dashboards.model import units
from dashboards.model.alert_book import FAIL, WARN, Breach, Rule, Unit
from dashboards.model.run_progress import accounted
from dashboards.model.samples import READING
from dashboards.model.slow_ranks import named
from dashboards.model.state import RunState
from dashboards.model.thresholds import Limits
from trainer.runlog.slow_ranks import SlowRank
from trainer.runlog.telemetry import StepRecord

FEW_STEPS = 5  # below this many the usual time of a step is not known


def stalled(context: RuleContext) -> Iterable[Breach]:
    """No step for much longer than steps take, pauses for saving included."""
    run, limits = context.running, context.limits
    if run is None:
        return
    if run.last is None or run.last_s is None:
        since_s = max((sample.at_s for sample in run.events), default=math.inf)
        limit_s, text, usual = limits.first_step_s, "no first step for", ""
    elif (restarting_s := accounted(run).restarting_since_s) is not None:
        since_s, limit_s, usual = restarting_s, limits.first_step_s, ""
        text = "no step since the restart for"
    elif run.last.steps_total and run.last.step >= run.last.steps_total:
        return  # the last step is done; what comes now is saving and evaluation
    elif context.now_s - run.last_s <= limits.stalled_s:
        return
    else:
        since_s, text = run.last_s, "no step for"
        usual_s, limit_s = longest_pause_s(run.recent, limits, run.steps.first_steps)
        usual = f" after step {run.last.step:,}"
        usual += f", usual {units.measured(usual_s)}" if usual_s else ""
    age_s = context.now_s - since_s
    if age_s > limit_s:
        text = f"{text} {units.duration(age_s)}{usual}"
        yield Breach(("", run.name), text, starts=age_s < limits.forgotten_s)


def longest_pause_s(
    records: Sequence[StepRecord], limits: Limits, first_steps: Collection[int] = ()
) -> tuple[float | None, float]:
    """(usual seconds of a step, seconds without one that are too many).

    `first_steps` are those of attempts: the pause before them tells nothing of steps.
    """
    if len(records) < FEW_STEPS:
        return None, max(limits.first_step_s / 3, 10 * max((r.step_s for r in records), default=0))
    usual_s = statistics.median(record.step_s for record in records)
    # From step to step, with saving and sampling between them.
    pauses = sorted(
        max(after.step_s, after.time_s - before.time_s if before.time_s > 0 else 0.0)
        for before, after in itertools.pairwise(records)
        if after.step not in first_steps
    )
    p99_s = pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))]
    times, p99_times = limits.stalled_times, limits.stalled_p99_times
    return usual_s, max(limits.stalled_s, times * usual_s, p99_times * p99_s)


def unread(context: RuleContext) -> Iterable[Breach]:
    run = context.state.run
    if run is not None and run.unread not in ("", READING):
        yield Breach(("", run.name), run.unread)


def failed(context: RuleContext) -> Iterable[Breach]:
    run = context.run
    if run is None or run.ended != "failed":
        return
    endings = [s for s in run.events if s.event.name in ("failed", "failure", "error", "end")]
    text, at_s = "ended badly", run.last_s
    if endings:
        words = [s.event.text for s in endings if s.event.text and s.event.name != "end"]
        text = words[-1].strip().splitlines()[-1] if words and words[-1].strip() else text
        at_s = endings[-1].event.time_s or endings[-1].at_s
    old = at_s is not None and context.now_s - at_s > context.limits.forgotten_s
    # The trainer's word comes first; a launcher then decides whether another attempt begins.
    may_restart = bool(run.journal.begins) and run.journal.end is None
    after_s = context.limits.decision_s if may_restart else None
    yield Breach(("", run.name), text, after_s=after_s, starts=not old)


def restarted(context: RuleContext) -> Iterable[Breach]:
    """Each restart of a run that goes on is an alert of its own for minutes, with its cause."""
    run = context.running
    for restart in run.journal.restarts if run else ():
        age_s = context.now_s - restart.time_s
        if run is not None and age_s <= context.limits.restarted_s:
            yield Breach(("", f"{run.name} attempt {restart.attempt}"), restart.text)


def bad_loss(context: RuleContext) -> Iterable[Breach]:
    run = context.running
    if run is None:
        return
    for record in reversed(run.recent[-context.limits.window_steps :]):
        if record.skipped:
            continue  # by the guard: nothing was learned from it
        for name, value in (("loss", record.loss), ("gradient norm", record.grad_norm)):
            if not math.isfinite(value):
                yield Breach(("", run.name), f"{name} is {value:g} at step {record.step:,}")
                return


def spike(context: RuleContext) -> Iterable[Breach]:
    """The mean of the last losses far above what the losses before them scattered by."""
    run, limits = context.running, context.limits
    if run is None:
        return
    losses = [record.loss for record in run.recent if math.isfinite(record.loss)]
    before, now = losses[: -limits.spike_steps][-200:], losses[-limits.spike_steps :]
    if len(before) < limits.spike_known:
        return
    middle = statistics.median(before)
    # The least of the last ones: one bad batch among good ones is no divergence.
    if min(now) <= limits.spike_times * middle:
        return
    spread = 1.4826 * statistics.median(abs(value - middle) for value in before)
    mean = statistics.fmean(now)
    if mean > middle + limits.spike_sigmas * spread:
        text = f"mean {units.number(mean)} over {len(now)} steps"
        yield Breach(("", run.name), f"{text}, before that {units.number(middle)}")


def data_wait(context: RuleContext) -> Iterable[Breach]:
    run, limits = context.running, context.limits
    if run is None:
        return
    window = run.recent[-limits.window_steps :]
    spent = sum(record.step_s for record in window)
    waited = sum(record.seconds.get("data", 0.0) for record in window)
    if len(window) >= limits.window_steps and spent > 0 and waited / spent >= limits.data_share:
        text = f"{100 * waited / spent:.0f} % of the last {len(window)} steps waited for clips"
        yield Breach(("", run.name), text)


def straggler(context: RuleContext) -> Iterable[Breach]:
    """Ranks that the others wait for, step after step; each by its GPU where that is known.

    The trainer names them. Where it does not, as older ones, only one that is far behind is seen.
    """
    run, limits = context.running, context.limits
    if run is None:
        return
    if run.slow is not None:
        for one, node in named(run, context.live):
            yield Breach(_unit(context, run, one), one.sentence(node), after_s=0.0)
        return
    window = run.recent[-limits.window_steps :]
    idle = [record.idle_share for record in window if record.idle_share is not None]
    if len(idle) < limits.window_steps or statistics.fmean(idle) < limits.straggler_share:
        return
    ranks = Counter(record.slowest_rank for record in window if record.slowest_rank is not None)
    rank, times = ranks.most_common(1)[0] if ranks else (0, 0)
    if times < max(1, limits.straggler_steps * len(window)):
        return
    text = f"rank {rank} is the slowest in {times} of {len(window)} steps"
    text += f", the others wait {100 * statistics.fmean(idle):.0f} % of them"
    place = run.place_of(rank)
    yield Breach((place[0], gpu_part(place[1])) if place else ("", run.name), text)


def _unit(context: RuleContext, run: RunState, slow: SlowRank) -> Unit:
    """Its GPU; on a node without any the rank, and where no plan has that, of the run."""
    if slow.rank is None:
        return "", run.name
    place = run.place_of(slow.rank)
    if place is None:
        return "", f"{run.name} rank {slow.rank}"
    sample = context.live.get(place[0])
    has_none = sample is not None and sample.gpus == ()
    return place[0], f"rank {slow.rank}" if has_none else gpu_part(place[1])


def unsent(context: RuleContext) -> Iterable[Breach]:
    """W&B does not take the figures, as the run reports; telemetry.jsonl has them all."""
    run = context.run
    for sample in reversed(run.events if run else ()):
        event = sample.event
        if event.name in ("start", "plan", "resume", "attempt"):
            return  # earlier events are of another attempt
        if run and event.name == "tracking":
            count = event.data.get("unsent")
            text = event.text or "W&B does not take the figures"
            if isinstance(count, int) and str(count) not in text:
                text += f", {count:,} unsent"
            if context.now_s - sample.at_s <= context.limits.forgotten_s:
                yield Breach(("", run.name), text)
            return


def space(context: RuleContext) -> Iterable[Breach]:
    """The next checkpoints do not fit, as the trainer reports at a save; over with a later one."""
    run = context.run
    saved = -1
    for sample in reversed(run.events if run else ()):
        event = sample.event
        if event.name == "checkpoint" and event.step is not None:
            saved = max(saved, event.step)
        if event.name in ("start", "done", "stopped"):
            return  # earlier events are of another attempt, or the run needs no more
        if run and event.name == "space":
            is_over = event.step is not None and saved > event.step
            if not is_over and context.now_s - sample.at_s <= context.limits.forgotten_s:
                yield Breach(("", run.name), event.text or "the next checkpoints do not fit")
            return


def unsaved(context: RuleContext) -> Iterable[Breach]:
    """The last save has failed, and the run trains on."""
    run = context.running
    for sample in reversed(run.events if run else ()):
        event = sample.event
        if event.name in ("checkpoint", "start"):
            return
        if run and event.name == "save-failed":
            yield Breach(("", run.name), event.text or "the last save failed")
            return


RULES = (
    Rule("run.failed", FAIL, "The run ended badly.",
         failed, run_known, 0, 0, "tail -n 30 {run}/ranks/*.log", "any other end than done or stopped, within the last day"),
    Rule("run.unread", WARN, "What the run does cannot be seen: no other rule about it can fire.",
         unread, always_known, 60, 0, "ls -l {run}", "an error of the file system, or no answer from it for 30 s", could_not_ask=True),
    Rule("run.restarted", WARN, "An attempt ended, and the launcher began another one: time is lost, and the same node may fail again.",
         restarted, run_known, 0, 0, "clusterctl logs {run} --tail 30", "a restart within the last 10 min"),
    # 3 s: when this machine itself stood still, steps arrive late.
    Rule("run.stalled", FAIL, "No step for far longer than steps take: hangs cost more than crashes, because nothing reports them.",
         stalled, run_known, 3, 5, "clusterctl dump-stacks {hosts}",
         "60 s, 6 x the median step, 3 x the 99th percentile from step to step: the largest; the first step 15 min",
         suppressed_by=("run.failed",)),
    Rule("loss.nan", FAIL, "What is trained from here on is lost: go back to the checkpoint before it.",
         bad_loss, run_known, 0, 60, "grep -nm1 NaN {run}/telemetry.jsonl", "loss or gradient norm not a number in the last 20 steps"),
    Rule("loss.spike", WARN, "Divergence, or clips of another kind.",
         spike, run_known, 0, 60, "clusterctl top --run {run}",
         "the last 5 steps 1.4 times and 8 sigmas above the 200 before them", suppressed_by=("loss.nan",)),
    Rule("run.data_wait", WARN, "GPUs wait for clips: more workers, a faster disk, or a clip that decodes slowly.",
         data_wait, run_known, 30, 120, "clusterctl dump-stacks {hosts}", "25 % of the last 20 steps"),
    Rule("run.straggler", WARN, "All ranks wait for the same ones, or all became slower.",
         straggler, run_known, 30, 120, "clusterctl why {run}",
         "5 % slower than the others over 80 steps, as the trainer judges; from older trainers ranks idle 25 % of the last 20 steps, and the same one slowest in 60 % of them",
         suppressed_by=("gpu.throttle", "gpu.idle", "gpu.xid", "gpu.hot")),
    Rule("wandb.unsent", WARN, "W&B does not take the figures: its page shows an old state while the run continues.",
         unsent, run_known, 0, 0, "wandb sync {run}/wandb/latest-run", "reported by the run since it started"),
    Rule("run.unsaved", FAIL, "What was trained since the last checkpoint is lost if the run ends now.",
         unsaved, run_known, 0, 0, "df -h {run}", "the last save failed"),
    Rule("run.space", WARN, "A save that finds the disk full fails, and so do the next ones.",
         space, run_known, 0, 0, "clusterctl plan-checkpoints {run}", "at a save, no room for the next 3 checkpoints; before the first step, for all of them"),
)  # fmt: skip
"""What the files of a run do not show is not there."""
