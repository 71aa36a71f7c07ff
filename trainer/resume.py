"""What a run takes from a checkpoint beside tensors: counters, schedule, place in the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.checkpoint import files as checkpoint
from trainer.config.load import Config
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.errors import CheckpointError, ConfigError
from trainer.guards.guards import FILE, Guards
from trainer.guards.rollback import Back
from trainer.optim.lr_schedules import Schedule
from trainer.weights import checkpoints

_COUNTS = ("epoch", "global_step", "samples", "bad_samples", "ema_updates", "world")


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint that a run continues from."""

    path: Path
    running: Mapping[str, int]
    schedule: Mapping[str, Any]
    sampler: Any  # checked by trainer.data.plan.state, which names what is wrong with it
    bad_clips: tuple[str, ...]  # paths that could not be read so far
    guards: Mapping[str, Any]  # empty in older checkpoints


def continued(config: Config, checkpoint: Path) -> Config:
    """The config of a run that goes on from a checkpoint of its own, exactly where that was: where
    the run itself began does not count any more."""
    fresh = {"start_from_scratch": False, "start_epoch": None, "start_step": None}
    return replace(config, load=str(checkpoint), **fresh)  # type: ignore[arg-type]


def source_of(config: Config, lives: Callable[[], None] = lambda: None) -> Source | None:
    """The checkpoint to resume from, whole; rank 0 reads it through once for all, and says by
    `lives` that it goes on."""
    if config.load is None:
        return None
    path = checkpoints.find(Path(config.load))
    checkpoint.verify(path, lives=lives)
    return read_source(path)


def read_source(path: Path) -> Source:
    """Raises CheckpointError naming the file and the entry that is missing or of another kind."""
    names = (checkpoint.SCHEDULE, checkpoint.SAMPLER, checkpoint.RUNNING)
    schedule, sampler, running = (checkpoint.read_document(path / name) for name in names)
    counts = [(checkpoint.RUNNING, name, running.get(name)) for name in _COUNTS]
    steps = schedule.get("steps", schedule.get("last_epoch"))
    for file, name, value in (*counts, (checkpoint.SCHEDULE, "steps", steps)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CheckpointError(f"{path / file}: {name} is {value!r}"[:300])
    bad = running.get("bad_clips", [])  # older checkpoints have none
    if not isinstance(bad, list) or not all(isinstance(clip, str) for clip in bad):
        raise CheckpointError(f"{path / checkpoint.RUNNING}: bad_clips is {bad!r}"[:300])
    guarded = path / FILE
    before = checkpoint.read_document(guarded) if guarded.is_file() else {}
    return Source(path, running, schedule, sampler, tuple(bad), before)


def take_over(schedule: Schedule, source: Source) -> str:
    """Set the schedule to the checkpoint's step; returns a note about the learning rate, or ""."""
    schedule.load_state_dict(source.schedule)
    before = source.schedule.get("lr")
    if not isinstance(before, (int, float)) or abs(before - schedule.lr) <= 1e-9 * abs(before):
        return ""
    own = f"this run's lr = {schedule.config.lr:g} and schedule"
    return f"the learning rate is {schedule.lr:.3g} by {own}, not the checkpoint's {before:.3g}"


def take_guards(guards: Guards, source: Source, back: Back | None) -> None:
    """Raises CheckpointError naming what is damaged in the checkpoint's file."""
    try:
        guards.load_state_dict(source.guards)
    except ValueError as error:
        raise CheckpointError(f"{source.path / FILE}: {error} cannot be read") from None
    if back is not None:
        guards.went_back(back)


def stated_place(
    config: Config, plan: DataPlan, before: Any, world: int, data_state: str
) -> Cursor | None:
    """Where --start-epoch and --start-step put the data, or None; `before` is the saved state."""
    epoch, step = config.start_epoch, config.start_step
    if epoch is None and step is None:
        return None
    if config.start_from_scratch and (epoch or step):
        raise ConfigError("--start-from-scratch begins with epoch 0, step 0; leave out one of them")
    if data_state != "fail":
        raise ConfigError(
            f"--data-state {data_state} is about the checkpoint's place in the data, and "
            "--start-epoch or --start-step state another; leave out one of them"
        )
    if epoch is None:
        epoch = before.get("epoch") if isinstance(before, Mapping) else None
    epoch, step = epoch if isinstance(epoch, int) else 0, step or 0
    if epoch >= config.epochs:
        raise ConfigError(f"--start-epoch {epoch}: the run ends after epochs = {config.epochs}")
    group = world * config.accumulation_steps
    steps = plan.steps(Cursor(epoch), group)
    if step and step >= steps:
        has = f"{steps} steps of {group} microbatches, 0 to {steps - 1}"
        hint = f"its end is --start-epoch {epoch + 1} --start-step 0"
        raise ConfigError(f"--start-step {step}: epoch {epoch} has {has}", hint=hint)
    return Cursor(epoch, step * group)


def resumed_note(source: Path, running: Mapping[str, Any], cursor: Cursor, world: int) -> str:
    """For people: what the run continues from, and where in the data."""
    before = running["world"]
    ranks = "" if before == world else f", written by {before} ranks and read by {world}"
    place = f"epoch {cursor.epoch} after {cursor.consumed} microbatches"
    return f"{source} of step {running['global_step']}{ranks}; the data continue in {place}"


def place_note(place: Cursor, source: Source | None, steps: int) -> str:
    """For people: where the data begin, and that this is not where they had come to."""
    begin = f"the data begin in epoch {place.epoch} after {place.consumed} microbatches"
    where = f"{begin}, as --start-epoch and --start-step say"
    if source is None:
        return where
    return f"{where}; clips may repeat or be left out; the count of steps continues after {steps}"
