"""Progress of long work, on stderr: how far, how fast, how much longer."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO, TypeVar

from trainer.runlog import units
from trainer.runlog.output import printable, write

P = TypeVar("P", bound="ProgressLine")
_ON_TERMINAL_S, _IN_LOG_S = 0.2, 10.0


class ProgressLine:
    """Writes to stderr: one line that changes on a terminal, a line every ten seconds elsewhere."""

    _began: float | None = None  # with the first step: loading before it gives no speed

    def __init__(self, what: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._what, self._quiet, self._stream = what, quiet, stream or sys.stderr
        self._stream = getattr(self._stream, "raw", self._stream)
        self._live = self._stream.isatty()
        self._last = time.monotonic()
        self._shown = False

    def seconds(self) -> float:
        """Since the first call."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        return now - self._began

    def is_due(self) -> bool:
        """Whether the next `show` will write; the text need not be made otherwise."""
        every_s = _ON_TERMINAL_S if self._live else _IN_LOG_S
        return not self._quiet and time.monotonic() - self._last >= every_s

    def show(self, text: str) -> None:
        self._last = time.monotonic()
        text = printable(f"{self._what}: {text}")
        # A line that wraps would not be removed whole.
        width = shutil.get_terminal_size().columns - 1
        write(f"\r\x1b[2K{text[:width]}" if self._live else text + "\n", self._stream)
        self._shown = self._live

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown:
            write("\r\x1b[2K", self._stream)
            self._shown = False


class RowProgress(ProgressLine):
    """Of a verb over a file: share, rows, rows a second, time left."""

    _first: tuple[float, int] | None = None  # share and rows when this process began

    def at(self, share: float, rows: int, extra: str = "") -> None:
        """`share` of the input is done (0 to 1), `rows` of it are through."""
        seconds, self._first = self.seconds(), self._first or (share, rows)
        if not self.is_due():
            return
        done = share - self._first[0]
        rate = (rows - self._first[1]) / seconds if seconds > 0 else 0.0
        left = "no end seen"
        if done > 0 and seconds > 0:
            left = f"{units.duration(seconds / done * (1 - share))} left"
        self.show(f"{share:.1%}, {rows:,} rows, {rate:,.0f}/s, {left}{extra}")


class StepProgress(ProgressLine):
    """Of steps that take about equally long: which of how many, time left."""

    unit = "step"

    def __call__(self, done: int, total: int) -> None:
        """Step `done` (from 0) begins."""
        seconds = self.seconds()
        if self.is_due():
            left = f", {units.duration(seconds / done * (total - done))} left" if done else ""
            self.show(f"{self.unit} {done + 1} of {total}{left}")


class ClipProgress(StepProgress):
    """Of microbatches of clips."""

    unit = "microbatch"


class ShapeProgress(StepProgress):
    """Of shapes of a batch."""

    unit = "shape"


class ByteProgress(ProgressLine):
    """Of a file being written: bytes and their speed."""

    def __call__(self, done: int, total: int) -> None:
        seconds = self.seconds()
        if self.is_due():
            speed = units.rate(done / max(seconds, 1e-3))
            self.show(f"{units.size(done)} of {units.size(total)}, {speed}")
