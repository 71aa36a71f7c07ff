"""Work of each rank that may take longer than ranks wait for each other, as a download does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from trainer.engine.agreement import attempt
from trainer.engine.base import Engine
from trainer.errors import EngineError, TrainerError
from trainer.runlog import units

T = TypeVar("T")
PACE_S = 2.0  # between two words to the others


def together_long(engine: Engine, work: Callable[[Callable[[], None]], T]) -> T:
    """What each rank's own `work` returns; if it fails on any, all raise that (collective).

    It runs in a thread of its own and calls what it is given whenever it has made progress. While
    any rank's makes some, all wait; work without progress for `timeout_s` of `setup` ends all.
    """
    progress_s = time.monotonic()
    found: list[tuple[T | None, TrainerError | None]] = []

    def lives() -> None:
        nonlocal progress_s
        progress_s = time.monotonic()

    def run() -> None:
        found.append(attempt(lambda: work(lives)))

    thread = threading.Thread(target=run, name="long-work", daemon=True)
    thread.start()
    while True:
        thread.join(min(PACE_S, engine.timeout_s / 8))
        silent_s = time.monotonic() - progress_s if thread.is_alive() else 0.0
        states = engine.gather_objects((thread.is_alive(), silent_s))
        stuck = [rank for rank, (_, silent_s) in enumerate(states) if silent_s > engine.timeout_s]
        if stuck:
            text = f"nothing has come for {units.duration(engine.timeout_s)} on rank {stuck[0]}"
            engine.raise_any(EngineError(text))
        if not any(is_at_work for is_at_work, _ in states):
            break
    value, failure = found[0]
    engine.raise_any(failure)
    return value  # type: ignore[return-value]
