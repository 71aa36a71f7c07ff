"""From what is known of a run to its plan: the interval, what it loses, and the disk. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.checkpoints import figures
from clusterctl.checkpoints.failures import FailureRecord, failures_of
from clusterctl.checkpoints.figures import Figure, by_option
from clusterctl.checkpoints.interval import Costs, row_steps, steps_of
from clusterctl.checkpoints.subject import Subject
from trainer.runlog.retention import DiskNeed, Rules, disk_need, largest_keep, save_steps


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user states instead of what is on record. None: not stated."""

    mtbf_s: float | None = None
    stall_s: float | None = None
    step_s: float | None = None
    ranks: int | None = None
    steps: int | None = None  # where the run ends


@dataclass(frozen=True, slots=True)
class Row:
    """One interval of the table; shares are of wall time."""

    ckpt_every: int
    interval_s: float
    save_share: float
    failure_share: float
    ettr: float
    more_peak_bytes: int | None  # that the rest of the run needs; None: not known


@dataclass(frozen=True, slots=True)
class Disk:
    """What the rest of the run needs on its disk; `why` says why that is not known."""

    held_bytes: int  # by complete checkpoints
    need: DiskNeed | None = None
    why: str = ""
    keep_that_fits: int | None = None  # keep_checkpoints, where the run's own does not fit

    def fits(self, free_bytes: int | None) -> bool | None:
        """None: not known."""
        if self.need is None or free_bytes is None:
            return None
        return self.need.more_peak_bytes <= free_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the command shows."""

    subject: Subject
    state: str  # planned, waiting, running, finished, stopped or failed
    step: int
    steps_total: int | None
    world: int | None
    figures: dict[str, Figure]  # by the name of the value
    failures: FailureRecord
    costs: Costs
    best_steps: int | None  # what ckpt_every should be; None where the step time is not known
    is_one_save_enough: bool  # T* is longer than what is left of the run
    now: Row | None
    best: Row | None
    rows: tuple[Row, ...]
    disk: Disk

    @property
    def fits(self) -> bool | None:
        space = self.subject.space
        return self.disk.fits(None if space is None else space.free_bytes)

    @property
    def exit_code(self) -> int:
        """0 good, 1 it does not fit, 3 what is asked for could not be found out."""
        if self.fits is False:
            return 1
        return 3 if self.fits is None or self.best_steps is None else 0


def make_plan(subject: Subject, stated: Stated, now_s: float) -> Plan:
    """`now_s` is unix time."""
    record, settings = subject.record, subject.settings
    last = record.last if record is not None else None
    world = stated.ranks or (last.world if last is not None else None)
    runs = [*([record] if record is not None else []), *subject.others]
    failures = failures_of(runs, now_s)
    found = {
        "save_stall_s": figures.save_stall(record, settings, subject.size),
        "save_write_s": figures.save_write(record, settings, subject.size),
        "step_s": figures.step_time(record),
        "mtbf_s": figures.failure_interval(failures, world),
        "detect_s": figures.detection(failures),
        "restart_s": figures.restart(failures),
    }
    for name, value, option in (
        ("mtbf_s", stated.mtbf_s, "--mtbf"),
        ("save_stall_s", stated.stall_s, "--save-stall"),
        ("step_s", stated.step_s, "--step-time"),
    ):
        if value is not None:
            found[name] = by_option(value, option)
    names = ("save_stall_s", "mtbf_s", "save_write_s", "detect_s", "restart_s")
    costs = Costs(*(found[name].value or 0.0 for name in names))
    state = record.state(now_s) if record is not None else "planned"
    step = last.last_step if last is not None else 0
    total = stated.steps or (record.steps_total if record is not None else None)
    total = total or settings.max_steps
    left = max(0, total - step) if total is not None else None
    if state == "finished":
        total, left = step, 0

    def row(steps: int) -> Row:
        seconds = steps * (found["step_s"].value or 0.0)
        rules = replace(settings.rules, ckpt_every=steps)
        need = _disk(subject, rules, step, total, suggest=False).need
        shares = (costs.save_share(seconds), costs.failure_share(seconds), costs.ettr(seconds))
        return Row(steps, seconds, *shares, None if need is None else need.more_peak_bytes)

    best_steps: int | None = None
    rows: tuple[Row, ...] = ()
    now = best = None
    every = settings.rules.ckpt_every
    if step_s := found["step_s"].value:
        best_steps = steps_of(costs.best_s, step_s)
        rows = tuple(row(steps) for steps in row_steps(best_steps, every, total))
        # Without saves between, a failure loses all that was done since the start.
        between = every or total
        now = row(between) if between else None
        best = row(best_steps)
    return Plan(
        subject=subject,
        state=state,
        step=step,
        steps_total=total,
        world=world,
        figures=found,
        failures=failures,
        costs=costs,
        best_steps=best_steps,
        is_one_save_enough=bool(best_steps and left and best_steps >= left),
        now=now,
        best=best,
        rows=rows,
        disk=_disk(subject, settings.rules, step, total, suggest=True),
    )


def _disk(subject: Subject, rules: Rules, step: int, total: int | None, *, suggest: bool) -> Disk:
    held = [(one.step, one.size.total_bytes) for one in subject.checkpoints]
    held_bytes = sum(size for _, size in held)
    if subject.size is None:
        return Disk(held_bytes, why=f"the size of a checkpoint is unknown: {subject.size_source}")
    each, extra = subject.size.total_bytes, subject.size.extra_bytes
    epoch = subject.record.epoch_steps if subject.record is not None else None
    epoch = epoch or _even_epochs(subject, total)
    try:
        saves = _saves(rules, step, total, epoch)
        need = disk_need(held, saves, each, extra, rules)
        keep = None
        free = subject.space.free_bytes if subject.space is not None else None
        if suggest and free is not None and need.more_peak_bytes > free:
            keep = largest_keep(held, saves, each, extra, rules, free)
        return Disk(held_bytes, need, keep_that_fits=keep)
    except ValueError as error:
        return Disk(held_bytes, why=str(error))


def _saves(rules: Rules, step: int, total: int | None, epoch: int | None) -> Sequence[int]:
    """Raises ValueError where it is not known how often the run saves."""
    if total is None and rules.is_bounded:
        # However long it is: as many as are kept, and the one after them.
        return [step + number for number in range(1, rules.keep_checkpoints + 2)]
    if total is None:
        raise ValueError("the length of the run is unknown; --steps N states it")
    if rules.ckpt_at_epoch_end and epoch is None and not rules.is_bounded:
        raise ValueError("ckpt_at_epoch_end: the steps of an epoch are unknown before one is over")
    steps = []
    for number, save in enumerate(save_steps(step, total, rules, epoch)):
        if number >= _MOST:
            raise ValueError(f"the run saves more than {_MOST:,} times")
        steps.append(save)
    return steps


_MOST = 20_000  # saves that are counted through, for each row of the table


def _even_epochs(subject: Subject, total: int | None) -> int | None:
    """Steps of an epoch where only the number of epochs ends the run."""
    settings = subject.settings
    if total is None or settings.max_steps is not None:
        return None
    return max(1, total // settings.epochs)
