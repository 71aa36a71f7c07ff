"""A program that gets figures of a run: training never waits for it and never fails by it."""

from __future__ import annotations

import abc
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trainer.errors import one_line
from trainer.runlog import units

CLOSE_S = 10.0
_QUEUED = 1000  # steps
_THREAD = "tracker"

Last = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class About:
    """What is known of a run when it starts."""

    run_dir: Path
    name: str
    step: int  # the last one before this start
    config: Mapping[str, Any]  # the resolved one, and what config.json has beside it
    facts: Mapping[str, Any] = field(default_factory=dict)  # world, device, attempt and the like


class Tracker(abc.ABC):
    """All of it happens on a daemon thread behind a bounded queue; when that is full, or the other
    program has failed, figures are dropped. `report` gets a message about that, once, perhaps from
    that thread."""

    name: ClassVar[str]
    package: ClassVar[str]  # what is to be installed

    def __init__(self, report: Callable[[str], None], about: About) -> None:
        self._report, self._about = report, about
        self._queue: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_QUEUED)
        self._over, self._failed, self._dropped = threading.Event(), threading.Lock(), 0
        self._last: Last = dict
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        self._thread.start()

    @abc.abstractmethod
    def _open(self) -> None:
        """On the thread: begin; may raise anything."""

    @abc.abstractmethod
    def _take(self, step: int, figures: Mapping[str, float]) -> None:
        """On the thread: figures of a step."""

    @abc.abstractmethod
    def _end(self, last: Mapping[str, Any]) -> None:
        """On the thread: all is taken; `last` are facts about the whole run."""

    def figures(self, step: int, figures: Mapping[str, float]) -> None:
        """Queue figures of a step; never waits and never raises."""
        if self._over.is_set() or not figures:
            return
        try:
            self._queue.put_nowait((step, figures))
        except queue.Full:
            self._dropped += 1

    def close(self, last: Last = dict, limit_s: float = CLOSE_S) -> bool:
        """Let what is queued go out for at most `limit_s` seconds; False when it did not. `last`
        says on the thread what is known of the run at its end."""
        deadline = time.monotonic() + limit_s
        self._last = last
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=limit_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._fail(
                f"{self.name} did not take the last figures within {units.duration(limit_s)}"
            )
        elif self._dropped:
            self._fail(f"{self.name} was too slow for {self._dropped} steps")
        return not self._thread.is_alive()

    def _fail(self, text: str) -> None:
        self._over.set()
        if self._failed.acquire(blocking=False):  # never released: one report
            self._report(self._without_secrets(text))

    def _without_secrets(self, text: str) -> str:
        return text

    def _work(self) -> None:
        try:
            self._open()
            while (item := self._queue.get()) is not None:
                self._take(*item)
            self._end(self._last())
        except ModuleNotFoundError as error:
            if (error.name or self.package).split(".")[0] != self.package:
                self._fail(f"{self.name} cannot be imported: {one_line(error)}")
                return
            off = f"--{self.package} {'off' if self.package == 'wandb' else 'false'}"
            self._fail(f"{self.name} is not installed: pip install {self.package}, or {off}")
        except Exception as error:  # noqa: BLE001 - thread boundary: reported once
            self._fail(f"{self.name} failed, the run continues without it: {one_line(error)}")


def is_stuck() -> bool:
    """Whether `close` left a thread running: exit hooks would wait for what it waits for."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
