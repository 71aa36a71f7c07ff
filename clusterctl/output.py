"""The only file that writes to the terminal: tables, JSON, notes, progress.

Everything it writes is made printable: what nodes, files and other programs say is in it. JSON
escapes it by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

from clusterctl.errors import Declined, OutputLost
from clusterctl.nodes import fold
from clusterctl.printable import printable
from clusterctl.remote.fanout import Fanout, NodeResult
from trainer.runlog import progress

T = TypeVar("T")

# ANSI colours by meaning; never the only carrier of it.
STYLES = {"good": "32", "warn": "33", "bad": "31", "dim": "2", "bold": "1"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table cell with a meaning from STYLES."""

    text: str
    style: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """stdout is data, stderr is progress, warnings and summary."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0
    color: str = "auto"

    def document(self, command: str, **data: Any) -> None:
        """The one JSON document of a command, on stdout; a stream has one a line."""
        document = {"schema": 1, "command": command, **data}
        _write(sys.stdout, json.dumps(document, default=str))
        self.flush()  # of a stream each line counts at once

    def line(self, text: str, style: str | None = None) -> None:
        """A line of data on stdout."""
        _write(sys.stdout, self._paint(printable(text, lines=True), style, sys.stdout))

    def note(self, text: str, style: str | None = None) -> None:
        """A line for the person, on stderr; silent under -q."""
        if not self.quiet:
            self.warn(text, style)

    def warn(self, text: str, style: str | None = None) -> None:
        """A line on stderr that -q does not silence."""
        self.flush()  # both may go to one pipe: keep their order
        _write(sys.stderr, self._paint(printable(text, lines=True), style, sys.stderr))
        _flush(sys.stderr)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Cell]],
        right: Sequence[str] = (),
        width: int | None = None,
    ) -> None:
        """Aligned columns without boxes, the same on a terminal and in a pipe; `right` are numbers.

        With `width` lines are cut there, so that a page keeps its height.
        """
        cells = [[_cell(cell) for cell in row] for row in rows]
        widths = [
            max(len(name), *(len(row[i].text) for row in cells)) if cells else len(name)
            for i, name in enumerate(columns)
        ]
        header = [Cell(name, "bold") for name in columns]
        for row in [header, *cells]:
            parts, begin = [], 0
            for name, cell, wide in zip(columns, row, widths, strict=True):
                gap = " " * (wide - len(cell.text))
                begin += len(gap) if name in right else 0
                room = len(cell.text) if width is None else max(0, width - begin)
                text = self._paint(_cut(cell.text, room), cell.style, sys.stdout)
                parts.append(gap + text if name in right else text + gap)
                begin += wide + 2 - (len(gap) if name in right else 0)
            _write(sys.stdout, "  ".join(parts).rstrip())

    def columns(self) -> int | None:
        """Width of the terminal that stdout is; None for a pipe or a file, which have no edge."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def rows(self) -> int | None:
        """As `columns`, lines of a page."""
        return shutil.get_terminal_size().lines if sys.stdout.isatty() else None

    def flush(self) -> None:
        """What was printed so far counts now: of a stream each block does. Raises `OutputLost`."""
        _flush(sys.stdout)

    def can_repaint(self) -> bool:
        """Whether stdout is a terminal whose page may be drawn anew."""
        return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def repaint(self) -> None:
        """Begin the page anew; what follows is drawn from the top."""
        if self.can_repaint():
            print("\x1b[H\x1b[2J", end="")

    def can_show(self, characters: str) -> bool:
        """Whether stdout's encoding has these characters."""
        try:
            characters.encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def sweep(self, fanout: Fanout[T], total: int) -> Iterator[NodeResult[T]]:
        """Pass results on as they arrive, with a line on a terminal that says who is waited for."""
        live = Live(enabled=not self.quiet)
        done = 0
        with live, live.every(0.2, lambda: _waiting_line(fanout, done, total)):
            for result in fanout:
                done += 1
                yield result

    def ways(self, results: Sequence[NodeResult[Any]]) -> None:
        """How nodes were reached, on stderr: with -v retries and accepted keys, with -vv phases."""
        for result in results:
            for note in result.notes if self.verbose else ():
                self.note(f"{result.node.name}: {note}", "dim")
        if self.verbose > 1:
            for result in results:
                words = [
                    f"{name} {seconds:.3f}" for name, seconds in result.phases if name != "queued"
                ]
                self.note(f"{result.node.name}: {', '.join(words)} s", "dim")

    def unreachable(self, results: Sequence[NodeResult[Any]]) -> None:
        """Say on stderr which nodes gave no answer, in which phase and why; also under -q."""
        dead = [result.node.name for result in results if result.unreachable is not None]
        if dead:
            who = f"{len(dead)} of {len(results)} nodes" if len(results) > 1 else dead[0]
            self.warn(f"error: {who} did not answer", "bad")
            for line in unreachable_lines(results):
                self.warn(f"  {line}")

    def confirm(self, question: str, declined: str, *, yes: bool) -> None:
        """Raises `Declined` unless the user agrees; without a terminal only `yes` does."""
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise Declined(declined, hint=f"{question} --yes answers yes")
        import click

        if not click.confirm(question, err=True):
            raise Declined(declined)

    def _paint(self, text: str, style: str | None, stream: TextIO) -> str:
        if style is None or not self.wants_color(stream):
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def wants_color(self, stream: TextIO) -> bool:
        """--color, then NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


def _cell(cell: str | Cell) -> Cell:
    text, style = (cell.text, cell.style) if isinstance(cell, Cell) else (cell, None)
    return Cell(printable(text), style)


def _write(stream: TextIO, text: str) -> None:
    """A line. Raises `OutputLost` for stdout, whose lines are data; stderr may be gone."""
    try:
        stream.write(text + "\n")
    except OSError as error:
        if stream is sys.stdout:
            raise OutputLost(f"cannot write to standard output: {error.strerror}") from error


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError as error:
        if stream is sys.stdout:
            raise OutputLost(f"cannot write to standard output: {error.strerror}") from error


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3] + "..." if room > 6 else text[:room]


def _waiting_line(fanout: Fanout[Any], done: int, total: int) -> str:
    waiting = fanout.waiting()
    if not waiting:
        return f"{done}/{total} nodes"
    node, phase, seconds = max(waiting, key=lambda item: item[2])
    names = fold([waiter.name for waiter, _, _ in waiting])
    return f"{done}/{total} nodes, waiting: {names} ({node.name}: {phase} {seconds:.1f} s)"


class Live:
    """One line on stderr that is overwritten; nothing at all when stderr is no terminal."""

    def __init__(self, enabled: bool = True) -> None:
        self._on = enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    @property
    def is_on(self) -> bool:
        """Whether stderr is a terminal that can overwrite a line."""
        return self._on

    def show(self, text: str) -> None:
        if self._on:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[2K" + printable(text)[:width])
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False

    def every(self, seconds: float, text: Any) -> _Ticker:
        return _Ticker(self, seconds, text)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class _Ticker:
    """Shows `text()` each `seconds` while the block runs."""

    def __init__(self, live: Live, seconds: float, text: Any) -> None:
        import threading

        self._live, self._seconds, self._text = live, seconds, text
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if live._on else None

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._live.show(self._text())

    def __enter__(self) -> None:
        if self._thread:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()


def clock(seconds: float) -> str:
    """A duration for people: 7.3 s, 2 min 05 s, 3 h 04 min."""
    return progress.clock(seconds, decimals=1)


def local_time(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def unreachable_lines(results: Sequence[NodeResult[Any]]) -> list[str]:
    """Dead nodes folded by phase and reason, each with how long it took and what to do."""
    groups: dict[tuple[str, str, str | None], list[NodeResult[Any]]] = {}
    for result in results:
        if result.unreachable:
            why = result.unreachable
            groups.setdefault((why.phase, why.message, why.hint), []).append(result)
    lines = []
    for (phase, message, hint), members in groups.items():
        slowest = max(member.unreachable.seconds for member in members if member.unreachable)
        names = fold([member.node.name for member in members])
        lines.append(f"{names}  {phase}  {slowest:.1f} s  {message}")
        if hint:
            lines.append(f"  hint: {hint}")
    return lines


def unreachable_json(result: NodeResult[Any]) -> Mapping[str, Any] | None:
    why = result.unreachable
    if why is None:
        return None
    return {
        "phase": why.phase,
        "seconds": round(why.seconds, 3),
        "message": why.message,
        "hint": why.hint,
    }
