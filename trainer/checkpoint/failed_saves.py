"""Saves that fail while a run trains on: told, tried again, and for how long.

A file server that is away for an hour, or a disk that is full at night, would otherwise end a run
that has lost nothing yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trainer.checkpoint.async_saver import Saved
from trainer.config.load import Config
from trainer.engine.base import Engine
from trainer.errors import CheckpointError

FIRST_STEPS, MOST_STEPS = 10, 1000  # to the next try; twice as many after each failure


class FailedSaves:
    """Of one run, since its last checkpoint. Its methods are called on all ranks alike."""

    def __init__(self, engine: Engine, config: Config, event: Callable[..., None]) -> None:
        """`event` tells of a failure (`Journal.event`)."""
        self._engine, self._event = engine, event
        self._limit_s = 3600 * config.ckpt_retry_hours
        self._every = config.ckpt_every
        self._next: int | None = None  # step of the next try
        self._pause = FIRST_STEPS
        self._since_s: float | None = None  # of the first failure

    def is_due(self, step: int) -> bool:
        """Whether a save is tried again after this step."""
        return step == self._next

    def take(self, work: Callable[[], list[Saved]], step: int) -> list[Saved]:
        """What `work` has saved; nothing where that failed and the run goes on (collective).

        Raises `CheckpointError` on all ranks once saves have failed for longer than the limit.
        """
        try:
            done = work()
        except CheckpointError as error:
            if not error.on_all_ranks or self._is_over():
                raise
            self._next, self._pause = step + self._pause, min(2 * self._pause, MOST_STEPS)
            if self._every:  # when one is due in any case
                self._next = min(self._next, step + self._every - step % self._every)
            text = f"{error}; training goes on, the next try is after step {self._next}"
            self._event("save-failed", text, step=step, next=self._next)
            return []
        if done:
            self._next, self._pause, self._since_s = None, FIRST_STEPS, None
        return done

    def _is_over(self) -> bool:
        """By rank 0's clock, on all ranks."""
        if not self._limit_s:
            return True
        now = time.monotonic()
        first_s = self._since_s = now if self._since_s is None else self._since_s
        return self._engine.run_on_rank0(lambda: now - first_s >= self._limit_s)
