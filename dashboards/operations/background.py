"""Work in the background of the screens: a thread for each job, with progress and cancel.

Not Textual's workers: leaving the program waits for those, and a node that hangs would hold the
terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from clusterctl.errors import ClusterctlError
from clusterctl.nodes import fold
from clusterctl.remote.fanout import Fanout, NodeResult

T = TypeVar("T")


class Cancelled(Exception):
    """The user cancelled the job."""


class Watch:
    """Progress of a job, and whether it is cancelled."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._text = ""
        self._fanout: Fanout[Any] | None = None
        self._done = self._total = 0

    def say(self, text: str) -> None:
        """Set the progress text. Raises `Cancelled`."""
        self._text = text
        self.check()

    def check(self) -> None:
        """Raises `Cancelled`."""
        if self._cancelled.is_set():
            raise Cancelled

    def sweep(self, fanout: Fanout[T], total: int) -> Iterator[NodeResult[T]]:
        """Pass results on as they arrive, for the libraries' `sweep`. Raises `Cancelled`."""
        self._fanout, self._done, self._total = fanout, 0, total
        for result in fanout:
            self._done += 1
            self.check()
            yield result
        self._fanout = None

    def line(self) -> str:
        """The progress: `18/24 nodes, waiting: n[3,17] (banner)`."""
        fanout = self._fanout
        if fanout is None:
            return self._text
        words = f"{self._done}/{self._total} nodes"
        waiting = fanout.waiting()
        if waiting:
            _, phase, _ = max(waiting, key=lambda item: item[2])
            words += f", waiting: {fold([name.name for name, _, _ in waiting])} ({phase})"
        return f"{self._text}  {words}" if self._text else words


class Job(Generic[T]):
    """Work in a daemon thread. `ended(job)` is called in that thread, unless it is cancelled."""

    def __init__(self, work: Callable[[Watch], T], ended: Callable[[Job[T]], object]) -> None:
        self._work, self._ended = work, ended
        self.watch = Watch()
        self.value: T | None = None
        self.error = ""  # why there is no value
        self.cancelled = False
        self.done = False
        self._started, self._took_s = time.monotonic(), 0.0
        self._thread = threading.Thread(target=self._run, name="work", daemon=True)

    def start(self) -> Job[T]:
        self._thread.start()
        return self

    @property
    def is_running(self) -> bool:
        return not self.done and not self.cancelled

    @property
    def seconds(self) -> float:
        """How long it takes, or took."""
        return self._took_s if self.done else time.monotonic() - self._started

    def cancel(self) -> None:
        """The thread ends with its next step."""
        self.cancelled = True
        self.watch._cancelled.set()

    def _run(self) -> None:
        try:
            self.value = self._work(self.watch)
        except Cancelled:
            self.cancelled = True
        except ClusterctlError as error:
            self.error = f"{error}" + (f" ({error.hint})" if error.hint else "")
        except Exception as error:  # noqa: BLE001 - thread boundary: the screen says it
            self.error = f"{type(error).__name__}: {error}"
        self._took_s, self.done = time.monotonic() - self._started, True
        if not self.cancelled:
            self._ended(self)
