"""Ending a long-lived command by Ctrl-C, SIGTERM or a closed terminal, through every cleanup."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from clusterctl.signal_handlers import handled_by

INTERRUPTED = 130


class Ending:
    """Set by a signal. A plain attribute: an Event's lock must not be taken in a handler."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def is_set(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C; 0 for SIGTERM, which is how services are ended."""
        return INTERRUPTED if self.signal == signal.SIGINT else 0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Ending]:
    """The first signal sets the ending; a second Ctrl-C interrupts whatever still waits."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending  # signals are the main thread's
        return

    def end(number: int, _frame: object) -> None:
        if ending.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        ending.signal = number

    with handled_by(end):
        yield ending
