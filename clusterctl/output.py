"""The only file that writes to the terminal: tables, JSON, notes, progress.

Everything it writes is made printable, because it holds text of nodes, files and other programs.
JSON escapes it by itself.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO, TypeVar

from checks import units
from clusterctl.errors import Declined, OutputLost
from clusterctl.nodes import Node, fold, grouped
from clusterctl.remote.fanout import Fanout, NodeResult
from clusterctl.report_lines import wrapped
from trainer.runlog.output import printable

T = TypeVar("T")

# ANSI colours by meaning, and of labels by number; never the only carrier of it.
LABELS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")  # of lines of many sources
MIN_WRAPPED = 24  # columns of text: below, the terminal may break it
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
    # Of a command that only reads: at Ctrl-C it shows the answers that are there, then ends.
    keeps_answers: bool = False
    interrupted: threading.Event = field(default_factory=threading.Event, compare=False)

    def document(self, command: str, **data: Any) -> None:
        """The one JSON document of a command, on stdout; a stream has one a line."""
        whole = {"schema": 1, "command": command, **data}
        try:
            text = json.dumps(whole, default=str, allow_nan=False)
        except ValueError:  # a number of a file of others: JSON has none that is not finite
            text = json.dumps(_finite(json.loads(json.dumps(whole, default=str))))
        _write(sys.stdout, f"{text}\n", flush=True)  # the reader of a stream gets it at once

    def line(self, text: str, style: str | None = None) -> None:
        """A line of data on stdout."""
        _write(sys.stdout, self._paint(_one_line(text), style, sys.stdout) + "\n")

    def lines(self, text: str) -> None:
        """Lines of data on stdout, of which no name of others is a part as it stands."""
        _write(sys.stdout, printable(text, lines=True).rstrip("\n") + "\n")

    def labelled(self, label: str, text: str, number: int) -> None:
        """A line of data behind a label, which has a colour by its number."""
        start = self._paint(printable(label), LABELS[number % len(LABELS)], sys.stdout)
        _write(sys.stdout, f"{start}{printable(text)}\n")

    def note(self, text: str, style: str | None = None) -> None:
        """A line for the person, on stderr; silent under -q."""
        if not self.quiet:
            self.warn(text, style)

    def warn(self, text: str, style: str | None = None) -> None:
        """A line on stderr that -q does not silence."""
        self.flush()  # both may go to one pipe: keep their order
        line = self._paint(_one_line(text), style, sys.stderr)
        _write(sys.stderr, f"{line}\n", flush=True)

    def summary(self, text: str, exit_code: int) -> None:
        """One line about all nodes: on stderr, with -q on stdout, where it is the only output."""
        write = self.line if self.quiet and not self.json else self.note
        write(text, "bad" if exit_code else None)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str | Cell]],
        right: Sequence[str] = (),
        width: int | None = None,
    ) -> None:
        """Aligned columns; `right` are numbers. With `width` lines are cut there, for a page; else
        texts are wrapped in their columns where a terminal ends, the last one first, and a table
        that is longer than it has the names of its columns below the rows, too."""
        lines = [[Cell(name, "bold") for name in columns]]
        lines += [[_cell(cell) for cell in row] for row in rows]
        widths = [max(len(cell.text) for cell in column) for column in zip(*lines, strict=True)]
        page = self.page() if width is None else None
        if page is not None:
            texts = [at for at in range(1, len(columns)) if columns[at] not in right]
            widths = _fitted(widths, texts, page.columns)
            if len(lines) >= page.lines:
                lines.append(lines[0])  # the first one scrolls off
        for line in lines:
            cells: list[list[str]] = []  # lines of each
            start = 0
            for name, cell, wide in zip(columns, line, widths, strict=True):
                whole = [cell.text] if len(cell.text) <= wide else wrapped(cell.text, wide)
                indent = wide - len(whole[0]) if name in right else 0
                if width is not None:
                    whole = [_cut(cell.text, width - start - indent)]
                cells.append([" " * indent + text for text in whole])
                start += wide + 2
            for at in range(max(map(len, cells))):
                parts = []
                for cell, texts_of_cell, wide in zip(line, cells, widths, strict=True):
                    text = texts_of_cell[at] if at < len(texts_of_cell) else ""
                    bare = text.lstrip(" ")
                    painted = self._paint(bare, cell.style, sys.stdout) if bare else ""
                    parts.append(text[: len(text) - len(bare)] + painted + " " * (wide - len(text)))
                _write(sys.stdout, "  ".join(parts).rstrip() + "\n")

    def node_table(
        self,
        columns: Sequence[str],
        rows: Sequence[tuple[str, str, Sequence[str]]],
        right: Sequence[str],
        width: int | None = None,
    ) -> None:
        """A table of (node set, verdict, cells); the verdict (good, bad, unknown) colours them."""
        styles = {"good": None, "bad": "bad", "unknown": "warn"}
        styled: list[list[str | Cell]] = [
            [names, *(Cell(text, styles[verdict]) for text in cells)]
            for names, verdict, cells in rows
        ]
        self.table(columns, styled, right, width)

    def page(self) -> os.terminal_size | None:
        """Columns and lines of the terminal that stdout is; None for a pipe or a file."""
        return shutil.get_terminal_size() if sys.stdout.isatty() else None

    def flush(self) -> None:
        """Write out what was printed so far. Raises `OutputLost`."""
        _write(sys.stdout, "", flush=True)

    def can_repaint(self) -> bool:
        """Whether stdout is a terminal whose page can be cleared."""
        return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def repaint(self) -> None:
        """Clear the page; what follows is drawn from the top."""
        if self.can_repaint():
            print("\x1b[H\x1b[2J", end="")

    def can_show(self, characters: str) -> bool:
        """Whether stdout's encoding has these characters."""
        try:
            characters.encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def sweep(
        self, fanout: Fanout[T], total: int, text: Callable[[int], str] | None = None
    ) -> Iterator[NodeResult[T]]:
        """Pass results on as they arrive, with a line on a terminal: the nodes waited for.

        `text` gives another line for the number of results so far.
        """
        done = 0
        line = text or (lambda done: _waiting_line(fanout, done, total))
        try:
            with Live(enabled=not self.quiet).every(0.2, lambda: line(done)):
                for result in () if self.interrupted.is_set() else fanout:
                    done += 1
                    yield result
        except KeyboardInterrupt:
            if not self.keeps_answers:
                raise
            self.interrupted.set()
        if self.interrupted.is_set():
            yield from fanout.rest("interrupted before it answered", "interrupted, not asked")

    def waiting(self, text: str) -> AbstractContextManager[None]:
        """A line on a terminal while the block runs: what is done, for how long already."""
        begun = time.monotonic()
        live = Live(enabled=not self.quiet)
        return live.every(0.5, lambda: f"{text} … {units.duration(time.monotonic() - begun)}")

    def ways(self, results: Sequence[NodeResult[Any]]) -> None:
        """How nodes were reached, on stderr: with -v retries and accepted keys, with -vv phases."""
        for result in results:
            for note in result.notes if self.verbose else ():
                self.note(f"{result.node.name}: {note}", "dim")
        for result in results if self.verbose > 1 else ():
            phases = ", ".join(f"{name} {took_s:.3f}" for name, took_s in result.phases[1:])
            self.note(f"{result.node.name}: {phases} s", "dim")

    def unreachable(self, results: Sequence[NodeResult[Any]]) -> None:
        """Print on stderr which nodes gave no answer, in which phase and why; also under -q."""
        dead = [result.node.name for result in results if result.unreachable is not None]
        if dead:
            who = f"{len(dead)} of {len(results)} nodes" if len(results) > 1 else dead[0]
            phases = {one.unreachable.phase for one in results if one.unreachable is not None}
            refused = phases & {"hostkey", "auth"}
            how = "did not answer" if phases - refused else "could not be logged in to"
            how += ", or could not be logged in to" if refused and phases - refused else ""
            self.warn(f"error: {who} {how}", "bad")
            for line in unreachable_lines(results):
                self.warn(f"  {line}")

    def connections(self, results: Sequence[NodeResult[Any]]) -> None:
        """The end of every command that connects: `ways`, then `unreachable`."""
        self.ways(results)
        self.unreachable(results)

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
        if style is None or not self._wants_color(stream):
            return text
        return f"\x1b[{STYLES.get(style, style)}m{text}\x1b[0m"

    def _wants_color(self, stream: TextIO) -> bool:
        """--color, then NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"


def _finite(value: Any) -> Any:
    """With null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(cell: str | Cell) -> Cell:
    text, style = (cell.text, cell.style) if isinstance(cell, Cell) else (cell, None)
    return Cell(printable(text), style)


def _fitted(widths: Sequence[int], texts: Sequence[int], columns: int) -> list[int]:
    """Widths whose sum fits into `columns`: the last column gives first, then the widest of the
    columns `texts`; where not even that is enough, the terminal may break the lines."""
    fitted, last = list(widths), len(widths) - 1
    over = sum(fitted) + 2 * last - columns
    if last and (give := min(over, fitted[last] - MIN_WRAPPED)) > 0:
        fitted[last] -= give
        over -= give
    narrower = list(fitted)
    while over > 0:
        widest = max((at for at in texts if at != last), key=narrower.__getitem__, default=None)
        if widest is None or narrower[widest] <= MIN_WRAPPED // 2:
            return fitted
        narrower[widest] -= 1
        over -= 1
    return narrower


def _one_line(text: str) -> str:
    """With tabs, and line breaks as text: a name that has one would make a line of its own."""
    return printable(text, lines=True).rstrip("\n").replace("\n", "\\n")


def _write(stream: TextIO, text: str, *, flush: bool = False) -> None:
    """Raises `OutputLost` for stdout, whose lines are data; stderr may be closed."""
    try:
        stream.write(text)
        if flush:
            stream.flush()
    except OSError as error:
        if stream is sys.stdout:
            raise OutputLost(error) from error


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: width - 3] + "..." if width > 6 else text[: max(0, width)]


def _waiting_line(fanout: Fanout[Any], done: int, total: int) -> str:
    waiting = fanout.waiting()
    if not waiting:
        return f"{done}/{total} nodes"
    node, phase, seconds = max(waiting, key=lambda item: item[2])
    names = fold([waiter.name for waiter, _, _ in waiting])
    return (
        f"{done}/{total} nodes, waiting: {names} ({node.name}: {phase} {units.duration(seconds)})"
    )


class Live:
    """One line on stderr that is overwritten; nothing at all when stderr is no terminal."""

    def __init__(self, enabled: bool = True) -> None:
        self.is_on = enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        if self.is_on:
            width = shutil.get_terminal_size().columns - 1
            _write(sys.stderr, "\r\x1b[2K" + printable(text)[:width], flush=True)
            self._shown = bool(text)

    def clear(self) -> None:
        if self._shown:
            self.show("")

    @contextmanager
    def every(self, seconds: float, text: Callable[[], str]) -> Iterator[None]:
        """Show `text()` each `seconds` while the block runs, then clear the line."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(seconds):
                self.show(text())

        if not self.is_on:
            yield
            return
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.clear()


def local_time(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def unreachable_lines(results: Sequence[NodeResult[Any]]) -> list[str]:
    """Dead nodes folded by phase and reason, each with how long it took and what to do.

    Reasons and hints are alike that differ only in what belongs to one node: its name, its address.
    """
    dead = [(result.node, result.unreachable) for result in results]
    groups = grouped(
        ((why.phase, _without_node(why.message, node)), (node, why)) for node, why in dead if why
    )
    lines = []
    for (phase, text), members in groups.items():
        slowest_s = max(why.seconds for _, why in members)
        first, reason = members[0]
        message = reason.message if len(members) == 1 else text
        names, took = fold([node.name for node, _ in members]), units.duration(slowest_s)
        lines.append(f"{names}  {phase}  {took}  {message}")
        hints = list(dict.fromkeys(why.hint for _, why in members if why.hint))
        if len(hints) == 1:
            lines.append(f"  hint: {hints[0]}")
        elif hints:
            lines.append(f"  hint, for {first.name}, and alike for the others: {hints[0]}")
    return lines


def _without_node(text: str, node: Node) -> str:
    """A text in which NODE stands for the node's own name and address."""
    for name in {node.name, node.address}:
        text = (
            text
            if name not in text
            else re.sub(rf"(?<![\w.:-]){re.escape(name)}(?![\w-]|[.:]\w)", "NODE", text)
        )
    return text


def unreachable_json(result: NodeResult[Any]) -> Mapping[str, Any] | None:
    why = result.unreachable
    return None if why is None else {**asdict(why), "seconds": round(why.seconds, 3)}
