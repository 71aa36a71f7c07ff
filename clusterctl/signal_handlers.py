"""Signal handlers for the time of a block."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a closed terminal
Handler = Callable[[int, Any], None] | signal.Handlers


@contextmanager
def handled_by(handler: Handler, numbers: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """These signals go to `handler` while the block runs."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
