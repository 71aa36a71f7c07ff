"""Time limits for what nothing else can end: a wait inside of a library, a hanging filesystem."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.errors import TrainerError
from trainer.runlog.output import report_error


@contextmanager
def ends_after(limit_s: float, error: TrainerError) -> Iterator[None]:
    """End the process after `limit_s` seconds: no exception reaches a thread that waits in C."""
    left = threading.Event()

    def watch() -> None:
        if not left.wait(limit_s):
            os._exit(report_error(error))

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield
    finally:
        left.set()


def threads_end(limit_s: float) -> bool:
    """Wait for threads that the interpreter joins at its end; False when they still run."""
    until = time.monotonic() + limit_s
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return False
    return True
