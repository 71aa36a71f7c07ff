"""One line about work that takes long: how far, how fast, how long still."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_ON_TERMINAL_S, _IN_LOG_S = 0.2, 10.0


class Progress:
    """Writes to stderr: one line over and over on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, what: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._what, self._quiet = what, quiet
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._began = self._last = time.monotonic()
        self._first: tuple[float, int] | None = None  # share and rows when this process began
        self._shown = False

    def show(self, share: float, rows: int, extra: str = "") -> None:
        """`share` of the input is done (0 to 1), `rows` of it are through."""
        now = time.monotonic()
        if self._first is None:
            self._first = (share, rows)
        if self._quiet or now - self._last < (_ON_TERMINAL_S if self._live else _IN_LOG_S):
            return
        self._last = now
        text = f"{self._what}: {line(share, rows, self._first, now - self._began)}{extra}"
        self._stream.write(f"\r\x1b[2K{text[:200]}" if self._live else text + "\n")
        self._stream.flush()
        self._shown = self._live

    def clear(self) -> None:
        """Take the line off a terminal."""
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._shown = False


def line(share: float, rows: int, first: tuple[float, int], seconds: float) -> str:
    """`first` is (share, rows) at the beginning of these seconds; earlier work tells no speed."""
    done = share - first[0]
    rate = (rows - first[1]) / seconds if seconds > 0 else 0.0
    left = (
        f"{clock(seconds / done * (1 - share))} left" if done > 0 and seconds > 0 else "no end seen"
    )
    return f"{share:.1%}, {rows:,} rows, {rate:,.0f}/s, {left}"


def clock(seconds: float) -> str:
    """7 s, 2 min 05 s, 3 h 04 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"
