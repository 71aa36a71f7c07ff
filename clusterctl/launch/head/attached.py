"""A terminal that looks at a run: progress as it comes, and what Ctrl-C shall mean.

The supervisor is a process of its own, so closing the terminal ends only the view, and so does
SIGTERM, which every process gets when a machine goes down. On a terminal Ctrl-C asks; in a script,
where nobody can answer, it stops the run of a launch, and ends an attach that only looks.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import CouldNotFindOut
from clusterctl.launch.head import wire
from clusterctl.launch.head.link import Link
from clusterctl.launch.progress import Progress
from clusterctl.launch.state import RunResult, RunState
from clusterctl.output import Output

TICK_S = 0.2
SILENT_S = 30.0  # it says something twice a second once its nodes are connected
LOG = "supervisor.log"
QUESTION = "[d]etach (it trains on), [s]top (it saves), [c]ancel (keep watching)?"
STOPPING = "stopping on all nodes; once more to kill at once"


def follow(
    link: Link, run_dir: Path, output: Output, signals: list[int], *, started_it: bool
) -> RunResult | None:
    """Show the run until it ends, or until the user detaches: then None.

    `signals` are those of this process, to which the caller's handler adds; `started_it` where this
    process is the run's launch. Raises `CouldNotFindOut` when its supervisor ends without a result,
    `KeyboardInterrupt` at a Ctrl-C that ends only the view.
    """
    return _View(link, run_dir, output, signals, started_it).run()


class _View:
    def __init__(
        self, link: Link, run_dir: Path, output: Output, signals: list[int], started_it: bool
    ) -> None:
        self._link, self._run_dir, self._output = link, run_dir, output
        self._started_it = started_it
        self._progress, self._state = Progress(output), RunState()
        self._signals = signals
        self._stops = 0
        self._heard_s: float | None = time.monotonic()  # None once its silence was told

    def run(self) -> RunResult | None:
        try:
            while True:
                self._check_silence()
                for message in self._link.take(TICK_S):
                    self._heard_s = time.monotonic()
                    try:
                        if message["type"] == "result":
                            return wire.result_of(message["result"])
                        self._show(message)
                    except wire.NOT_OURS as error:
                        why = f"{type(error).__name__}: {error}"
                        text = f"the supervisor's message is none of this version ({why})"
                        hint = f"the run goes on; {self._run_dir / LOG} has its lines"
                        raise CouldNotFindOut(text, hint=hint) from None
                if self._link.ended:
                    raise self._lost()
                if self._signals and self._leaves(self._signals.pop(0)):
                    return None
        finally:
            self._progress.close()
            self._link.close()

    def _show(self, message: dict[str, Any]) -> None:
        if message["type"] == "state":
            wire.take(self._state, message["state"], message["events"])
            self._progress.update(self._state)

    def _check_silence(self) -> None:
        if self._heard_s is not None and time.monotonic() - self._heard_s > SILENT_S:
            self._heard_s = None
            text = f"the supervisor has said nothing for {units.duration(SILENT_S)}"
            text += f": stopped, or its disk hangs; {self._run_dir / LOG}"
            self._output.warn(text, "warn")

    def _lost(self) -> CouldNotFindOut:
        hint = f"its ranks train on without it: clusterctl attach {self._run_dir} continues with it"
        return CouldNotFindOut("the supervisor of this run has ended", hint=hint)

    def _leaves(self, number: int) -> bool:
        """Whether this signal ends the view while the run goes on."""
        if number == signal.SIGHUP:
            return True
        if number == signal.SIGTERM:
            hint = f"clusterctl attach {self._run_dir} shows it, clusterctl stop ends it"
            raise CouldNotFindOut("ended by SIGTERM; the run goes on", hint=hint)
        can_answer = sys.stdin is not None and sys.stdin.isatty()
        if not (can_answer or self._started_it):
            self._output.warn("the run goes on; clusterctl stop ends it")
            raise KeyboardInterrupt
        is_asked = number == signal.SIGINT and not self._stops and can_answer
        answer = self._ask() if is_asked else "s"
        if answer == "s":
            self._stops += 1
            self._link.send("stop" if self._stops == 1 else "kill")
            if self._stops == 1:
                with suppress(OSError, RuntimeError):  # a terminal that has gone
                    self._output.warn("")
                    self._output.warn(STOPPING)
        return answer == "d"

    def _ask(self) -> str:
        """One of d, s, c. Ctrl-C once more is s; where the run ends meanwhile, c."""
        self._progress.close()
        self._output.warn("")
        self._output.warn(f"{QUESTION} ", "warn")
        with _key_by_key():
            while not self._link.ended:
                if self._signals:
                    if self._signals[0] == signal.SIGTERM:
                        return "c"  # it is answered as one that comes at any other time
                    return "d" if self._signals.pop(0) == signal.SIGHUP else "s"
                with suppress(InterruptedError):
                    if select.select([sys.stdin], [], [], TICK_S)[0]:
                        key = os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower()
                        if key in ("d", "s", "c"):
                            return key
                        if not key:  # the terminal has gone
                            return "d"
        return "c"


@contextmanager
def _key_by_key() -> Iterator[None]:
    """Keys arrive without Enter; Ctrl-C still is a signal."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
