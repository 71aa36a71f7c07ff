"""Validation between two steps of a run: its model, and the average of its weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.data.loader.microbatch import Bad
from trainer.runlog.progress import ClipProgress
from trainer.runlog.validation import Figures
from trainer.step import Run
from trainer.validation.measure import Show

_SHOWN_CLIPS = 5


def prepare(run: Run) -> None:
    """Read and encode the clips that are kept for validation (collective): at the start of every
    attempt, so that what is missing for it ends none after hours of training."""
    if run.validation is not None and not run.validation.is_ready:
        with _progress(run) as show:
            run.validation.prepare(show)
        if run.validation.bad:
            _tell_bad(run, run.validation.bad)


def validate(run: Run) -> None:
    """Measure both on the clips that are kept for it, and report the losses (collective). Changes
    neither weights nor random numbers nor the place in the data."""
    if (validation := run.validation) is None:
        return
    engine, began = run.engine, time.monotonic()
    prepare(run)
    with _progress(run) as show:
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


@contextmanager
def _progress(run: Run) -> Iterator[Show]:
    """Shows (done, all) to people, and that the rank lives."""
    heartbeat = run.clock.heartbeat
    with ClipProgress("validation", quiet=run.engine.rank != 0) as progress:

        def show(done: int, total: int) -> None:
            if heartbeat is not None:
                heartbeat.beat("validation", run.step)
            progress(done, total)

        yield show


def _tell_bad(run: Run, bad: list[Bad]) -> None:
    shown = "; ".join(f"{clip.path}: {clip.reason}" for clip in bad[:_SHOWN_CLIPS])
    more = f"; and {len(bad) - _SHOWN_CLIPS} more" if len(bad) > _SHOWN_CLIPS else ""
    kept = f"{len(bad)} of the clips kept for validation"
    text = f"{kept} cannot be read and do not count: {shown}{more}"
    run.journal.event("data", text, step=run.step)
