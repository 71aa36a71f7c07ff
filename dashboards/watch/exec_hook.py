"""A program of the user that runs for each alert, and never delays the watch."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.payload.jobs.processes import SIGNAL_NAMES
from dashboards.model import units

WAITING = 100  # alerts that wait for a slow hook; more are dropped, with a message


def parse_command(text: str) -> list[str]:
    """Words of the command, for no shell. Raises `UsageError`."""
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--exec {text!r}: {error}") from None
    if not argv:
        raise UsageError("--exec needs a command")
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"--exec: no program is called {argv[0]!r}",
            hint="give its path; for pipes and redirections write a script",
        )
    return argv


class Hook:
    """Runs `argv` once for each document, one after the other, with the document as JSON on stdin.

    After `timeout_s` it is killed with its process group. `problems()` has the failures. Its output
    goes to stderr, because stdout is data.
    """

    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        self._argv, self._timeout_s = list(argv), timeout_s
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._dropped = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hook", daemon=True)
        self._thread.start()

    def put(self, document: Mapping[str, Any]) -> None:
        """Run the program for it; never waits."""
        try:
            self._queue.put_nowait(document)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                self._problems.put(f"the hook is too slow: {WAITING} alerts wait, more are dropped")

    def problems(self) -> list[str]:
        """Sentences about failures since the last call."""
        return [self._problems.get_nowait() for _ in range(self._problems.qsize())]

    def close(self) -> None:
        """Run what waits for `timeout_s` in all, then end it."""
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=self._timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._over.set()
            self._thread.join(5.0)
            self._problems.put("the hook did not end in time")
        if self._dropped:
            self._problems.put(f"{self._dropped} alerts were not given to the hook")

    def _work(self) -> None:
        while (document := self._queue.get()) is not None and not self._over.is_set():
            problem = self._run(json.dumps(document, default=str).encode() + b"\n")
            if problem:
                self._problems.put(f"the hook {self._argv[0]} {problem}")

    def _run(self, data: bytes) -> str:
        try:
            child = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=2,  # stderr: our stdout is data
                start_new_session=True,  # Ctrl-C is for the watch; the group can be killed
            )
        except OSError as error:
            return f"cannot be started: {error}"
        deadline = time.monotonic() + self._timeout_s
        to_send: bytes | None = data
        while True:
            try:
                child.communicate(to_send, timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                to_send = None
                if self._over.is_set() or time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
                    return f"was killed after {units.duration(self._timeout_s)}"
        code = child.returncode
        if code < 0:
            return f"was ended by {SIGNAL_NAMES.get(-code) or f'signal {-code}'}"
        return f"ended with exit code {code}" if code else ""
