"""A run that is asked to stop by a signal: it saves after the step that is under way."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.step import Run

_ONE_KEYSTROKE_S = 1.0


class Stopper:
    """Handles SIGTERM and SIGINT: all ranks agree at the end of the step, then save."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._asked_s: list[float] = []

    def attach(self, run: Run | None) -> None:
        """From now on this run is stopped; at once if that was asked while there was none."""
        self._run = run
        if run is not None and self._asked_s:
            run.stop_requested = True

    def __call__(self, number: int, _frame: object) -> None:
        self._asked_s.append(time.monotonic())
        if self._run is not None:
            self._run.stop_requested = True
        # Ctrl-C again ends the process at once. torchrun passes the first one on a second time.
        if number == signal.SIGINT and self._asked_s[-1] - self._asked_s[0] > _ONE_KEYSTROKE_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
