"""Validation between two steps of a run: its model, and the average of its weights."""

from __future__ import annotations

import time

from trainer.runlog.progress import ClipProgress
from trainer.runlog.validation import Figures
from trainer.step import Run

_SHOWN_CLIPS = 5


def validate(run: Run) -> None:
    """Measure both on the clips that are kept for it, and report the losses (collective). Changes
    neither weights nor random numbers nor the place in the data."""
    if (validation := run.validation) is None:
        return
    engine, heartbeat, began = run.engine, run.clock.heartbeat, time.monotonic()
    with ClipProgress("validation", quiet=engine.rank != 0) as progress:

        def show(done: int, total: int) -> None:
            if heartbeat is not None:
                heartbeat.beat("validation", run.step)
            progress(done, total)

        is_first = not validation.is_ready
        validation.prepare(show)
        if is_first and validation.bad:
            _tell_bad(run, validation.bad)
        found = validation.measure(engine.module, show)
        if not found.clips:
            text = "none of the clips kept for validation can be read: there is no loss of them"
            run.journal.event("validation", text, step=run.step)
            return
        averaged: Figures | None = None
        if run.config.validation.ema:
            if run.saver.is_copying:
                with run.clock.phase("checkpoint", run.step):
                    run.saver.hold()
            with engine.computing_with(run.ema.state_dict()):
                averaged = validation.measure(engine.module, show)
    run.journal.validation(run.step, run.samples, found, averaged, time.monotonic() - began)


def _tell_bad(run: Run, bad: list[tuple[int, str, str]]) -> None:
    shown = "; ".join(f"{path}: {reason}" for _, path, reason in bad[:_SHOWN_CLIPS])
    more = f"; and {len(bad) - _SHOWN_CLIPS} more" if len(bad) > _SHOWN_CLIPS else ""
    text = f"{len(bad)} clips kept for validation cannot be read and do not count: {shown}{more}"
    run.journal.event("data", text, step=run.step)
