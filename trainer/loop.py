"""The training loop: epochs of steps, and when a run saves and ends. A step is in trainer.step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saved
from trainer.checkpoint.room import Room, Shortage, rules_of
from trainer.checkpoint.sizes import size_of_model
from trainer.data.loader.microbatch import Batch
from trainer.data.plan import state as data_state
from trainer.errors import CheckpointError, TrainerError
from trainer.guards import guards
from trainer.guards.guards import require_finite
from trainer.runlog.progress import ShapeProgress
from trainer.runlog.run_dir import Fence
from trainer.step import Run, report, step
from trainer.validate import prepare, validate


def train(run: Run) -> bool:
    """Train to the end; False if stopped before. Leaves a checkpoint; raises on all ranks alike."""
    try:
        stopped = _steps(run)
    except TrainerError as error:
        if error.on_all_ranks and not isinstance(error, CheckpointError):
            try:  # the checkpoint under way is good
                _finish(run)
            except CheckpointError as later:
                error.args = (f"{error}\n{later}",)
        raise
    _finish(run)
    return not stopped


def _steps(run: Run) -> bool:
    batches = _timed(run)
    room = _room(run)
    _require(run, room)
    stopped, fence = False, Fence(run.run_dir)
    prepare(run)
    if not run.step:
        validate(run)
    while not run.is_over and not stopped:
        if run.engine.rank == 0:
            fence.check()
        stopped = step(run, batches)
        if _is_due(run) and not stopped and not run.is_over:
            _tell(run, room.look_ahead(run.step, run.steps_total))
            save(run)
        if not stopped and _needs_validation(run):
            validate(run)
    save(run, background=False)
    return stopped and not run.is_over


def _is_due(run: Run) -> bool:
    """Whether a checkpoint belongs after this step; the same on all ranks."""
    every, is_epoch_end = run.config.ckpt_every, not len(run.loader)
    if run.failed_saves.is_due(run.step) or (every and run.step % every == 0):
        return True
    return run.config.ckpt_at_epoch_end and is_epoch_end


def _needs_validation(run: Run) -> bool:
    """Every so many steps, and at the end; the same on all ranks."""
    every = run.config.validation.every
    return bool(every) and (run.step % every == 0 or run.is_over)


def _room(run: Run) -> Room:
    config, plan, epoch = run.config, run.plan, run.loader.cursor.epoch
    steps = len(plan.epoch(epoch)) // (run.engine.world * config.accumulation_steps)
    size = size_of_model(run.engine.module, config.dtype)
    return Room(run.run_dir, size, rules_of(config), steps or None)


def _require(run: Run, room: Room) -> None:
    """Raises CheckpointError where no checkpoint fits; warns of later ones (collective)."""
    first, last = run.step, run.step if run.is_over else run.steps_total
    _tell(run, run.engine.run_on_rank0(lambda: room.check(first, last)))


def _tell(run: Run, lacks: Shortage | None) -> None:
    if lacks is not None:
        run.journal.event("space", lacks.text, step=run.step, **lacks.data)


def _timed(run: Run) -> Iterator[Batch]:
    """Batches of this epoch and the next ones; waiting for them is the phase "data"."""

    def next_one() -> Batch | None:
        with run.clock.phase("data", run.step + 1):
            return next(batches, None)

    while True:
        _report_epoch(run)
        _warm_up(run)
        batches = iter(run.loader)
        yield from iter(next_one, None)


def _report_epoch(run: Run) -> None:
    """What the epoch trains on, and what of the data it leaves out and why."""
    cursor, plan = run.loader.cursor, run.plan.epoch(run.loader.cursor.epoch)
    if not len(plan):
        return
    each = run.engine.world * run.config.accumulation_steps
    left = plan.left_out(len(run.plan.manifest), each, cursor.consumed)
    reasons = "".join(f"; {count:,} {why}" for why, count in left.items() if count)
    begins = "continues" if cursor.consumed else "begins"
    clips = len(run.plan.manifest) - sum(left.values())
    text = f"epoch {cursor.epoch} {begins}: {clips:,} clips{reasons}"
    run.journal.event("epoch", text, step=run.step, clips=clips, left_out=left)


def _warm_up(run: Run) -> None:
    """Compilers work now, not in a step that meets a new shape (collective)."""
    if run.warm_up is None:
        return
    cells = np.unique(run.plan.epoch(run.loader.cursor.epoch).cells).tolist()
    with ShapeProgress("warm-up", quiet=run.engine.rank != 0) as progress:
        warmed = run.warm_up.run([run.plan.buckets.cells[cell] for cell in cells], progress)
    if warmed is not None:
        run.journal.event("warm-up", str(warmed), step=run.step, **asdict(warmed))


def save(run: Run, *, background: bool = True) -> None:
    """Begin a checkpoint of this moment, unless there is one (collective). Raises `Diverged` on
    all ranks, and writes nothing, when weights or average are not finite; `CheckpointError` where
    it fails and is not tried again: the last one of a run (not in the `background`), or see
    `FailedSaves`."""
    if run.saved_at == run.step:
        return
    place, tensors = (run.loader.cursor.epoch, run.step), run.ema.state_dict()
    with run.clock.phase("checkpoint", run.step):
        require_finite(run.engine, run.step, tensors)
        done = run.failed_saves.take(run.saver.finish, run.step)  # the one before

        def begin() -> list[Saved]:
            return run.saver.save(*place, tensors, _documents(run), background=background)

        done += run.failed_saves.take(begin, run.step) if background else begin()
    run.saved_at = run.step
    report(run, done)


def _documents(run: Run) -> Callable[[], dict[str, Any]]:
    """What a checkpoint holds beside tensors, made on the saver's thread: a pass over the epoch."""
    cursor, world, plan, schedule = run.loader.cursor, run.engine.world, run.plan, run.schedule
    now = {
        checkpoint.SCHEDULE: schedule.state_dict(),
        guards.FILE: run.guards.state_dict(),
        checkpoint.RUNNING: {
            "schema": 1,
            "epoch": cursor.epoch,
            "global_step": run.step,
            "samples": run.samples,
            "bad_samples": len(run.bad_clips),
            "bad_clips": sorted(run.bad_clips),
            "ema_updates": run.ema.updates,
            "world": world,
            "captions": run.captions,
        },
    }
    return lambda: {
        **now,
        checkpoint.SAMPLER: data_state.take(plan, cursor, world),
        checkpoint.SEEN: data_state.seen(plan, cursor),
    }


def _finish(run: Run) -> None:
    """Wait for the checkpoint under way (collective)."""
    with run.clock.phase("checkpoint", run.step):
        done = run.saver.finish()
    report(run, done)
