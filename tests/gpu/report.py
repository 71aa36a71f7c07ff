"""Where figures go when they come: NAME.jsonl, what a terminal shows, and a folder of at most
three files to carry home.

A line is on the disk before the next measurement begins. The folder SEND has NAME.jsonl (renewed
with every line), NAME.txt (the table) and NAME.tar.gz (raw outputs and tracebacks; both after every
phase). Each is replaced in one step, so that a kill at any moment leaves whole files.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import math
import os
import shutil
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.runlog.json_file import parse_object
from trainer.runlog.locks import hold
from trainer.runlog.output import LOG, printable, write
from trainer.runlog.progress import ProgressLine
from trainer.runlog.run_files import open_to_append, read_chosen
from trainer.runlog.units import counted

KEPT = ("raw", "errors")  # folders of OUT that are carried home
MOST_BYTES = 15 << 20  # of a file that is carried
_MOST_OF_ONE = 4 << 20
COLUMNS = 150  # of a table that is not for a terminal
_WORDS = ("phase", "result", "figure", "reason", "headline", "command", "date", "gpu", "python")
_WORDS += ("torch",)


def show(text: str) -> None:
    """Print. A reader that has ended stops no measurement."""
    write(f"{text}\n", sys.stdout)


class Record:
    """Of one command. Raises ConfigError for folders that cannot be used; a disk that fills later
    ends nothing."""

    def __init__(
        self, name: str, out: Path, send: Path | None, show: Callable[[str], None] = show
    ) -> None:
        self._name, self._out, self._send, self.show = name, out, send, show
        self._begin = time.monotonic()
        self.is_whole = True  # whether every line is where it belongs
        self.path = out / f"{name}.jsonl"
        self._lines: list[bytes] = []
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, folder := _made(out))
            try:
                if not hold(folder):
                    raise ConfigError(f"another process measures into {out}")
                if send is not None:
                    os.close(_made(send))
                _move_away(self.path)  # of an earlier call: what was measured stays
                self._file = opened.enter_context(io.FileIO(open_to_append(self.path), "a"))
            except OSError as error:
                raise ConfigError(f"{self.path}: {error.strerror}") from None
            self.close = opened.pop_all().close

    def line(self, values: Mapping[str, Any]) -> None:
        """Show and keep one figure, one row of a phase, or the head."""
        at = {"at_s": round(time.monotonic() - self._begin, 1)}
        text = json.dumps(_strict({**values, **at}), default=str, allow_nan=False)
        self._lines.append(text.encode() + b"\n")
        try:
            self._file.write(self._lines[-1])
            os.fsync(self._file.fileno())
        except OSError as error:
            self._failed(f"{self.path} lacks a line: {error.strerror}")
        self._carry(f"{self._name}.jsonl", lambda: b"".join(self._lines))
        self.show(text)

    def table(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Renew the table of all phases so far, and what is carried home."""
        self._carry(f"{self._name}.txt", lambda: f"{table_of(rows)}\n".encode())
        self._carry(f"{self._name}.tar.gz", lambda: packed(self._out))

    def _carry(self, name: str, content: Callable[[], bytes]) -> None:
        if self._send is None:
            return
        part = self._send / ".part"  # one at a time, and no more
        try:
            self._send.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content())
            part.replace(self._send / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            self._failed(f"{self._send / name} is not renewed: {error.strerror}")

    def _failed(self, why: str) -> None:
        self.is_whole = False
        LOG.error(why)


def _made(folder: Path) -> int:
    """A descriptor of the folder, made where it is missing. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        why = "not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{folder} cannot be written: {why}") from None


def _move_away(path: Path) -> None:
    """To the first free one of NAME-1, NAME-2..."""
    if os.path.lexists(path):
        names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not os.path.lexists(name)))


class Watch:
    """A record while it is written. A terminal gets a line a phase, and one that changes below; a
    pipe gets the record's lines."""

    def __init__(self, record: Record, count: int, deadline_s: float) -> None:
        self._record, self._count = record, count
        self._until = time.monotonic() + deadline_s
        self.rows: list[dict[str, Any]] = []
        self._figures, self._live = 0, ProgressLine("")
        self._is_terminal = sys.stdout.isatty()
        self.columns = shutil.get_terminal_size().columns if self._is_terminal else COLUMNS
        if self._is_terminal:
            record.show = lambda text: None

    def begin(self, name: str) -> None:
        self._figures = 0
        self._live = ProgressLine(f"{self._place()} {name}", quiet=not self._is_terminal)
        if self._is_terminal:
            self._live.show(self._left())

    def figure(self, values: dict[str, Any]) -> None:
        self._record.line(values)
        self._figures += 1
        if self._live.is_due():
            said = counted(self._figures, "figure")
            self._live.show(f"{said}, the last {values['figure']}; {self._left()}")

    def row(self, values: dict[str, Any]) -> None:
        self._live.clear()
        self._record.line(values)
        if self._is_terminal:
            result = "" if values["result"] == "measured" else f"  {str(values['result']).upper()}"
            said = f"{values['seconds']:.1f} s, {counted(self._figures, 'figure')}, {self._left()}"
            show(f"{self._place()} {values['phase']}: {said}{result}")
        self.rows.append(values)
        self._record.table(self.rows)

    def _place(self) -> str:
        return f"{len(self.rows) + 1:>2}/{self._count}"

    def _left(self) -> str:
        return f"{max(0.0, self._until - time.monotonic()):.0f} s left"


def _strict(value: Any) -> Any:
    """With words in the place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _strict(part) for name, part in value.items()}
    return [_strict(part) for part in value] if isinstance(value, list | tuple) else value


def packed(out: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """A tar.gz of OUT's raw outputs and tracebacks: the small ones first, as many as fit."""
    files = [path for name in KEPT for path in sorted((out / name).rglob("*")) if path.is_file()]
    sizes = {path: path.stat().st_size for path in files}
    held, total = [], 0
    for path in sorted(files, key=lambda path: sizes[path]):
        total += sizes[path] + 1024  # uncompressed, with its header
        if sizes[path] > _MOST_OF_ONE or total > most_bytes:
            break
        held.append(path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=3) as archive:
        for path in held:
            archive.add(path, path.relative_to(out))
    return buffer.getvalue()


def table_of(rows: Iterable[Mapping[str, Any]], columns: int = COLUMNS) -> str:
    """Item, phase, seconds, and the headline or why there is none, in lines of `columns`."""
    lines = [f"{'':>3} {'phase':<32} {'seconds':>7}"]
    for row in rows:
        begin = f"{row['item']:>3} {row['phase']:<32} {row['seconds']:7.1f}  "
        wide = max(24, columns - len(begin))
        text = textwrap.wrap(printable(said_of(row)), wide, break_on_hyphens=False) or [""]
        lines += [f"{begin}{text[0]}".rstrip(), *(" " * len(begin) + more for more in text[1:])]
    return "\n".join(lines)


def said_of(row: Mapping[str, Any]) -> str:
    """The headline of a phase, behind its result where that is not "measured"."""
    parts = [] if row["result"] == "measured" else [str(row["result"]).upper()]
    parts += [str(row[name]) for name in ("reason", "headline") if row.get(name)]
    return ": ".join(parts)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """What a record holds, and how many lines are left out: one that was cut by a kill, or others
    that no record has. Raises OSError."""
    texts = [text for text in read_chosen(path).splitlines() if text.strip()]
    found = []
    for text in texts:
        with contextlib.suppress(ValueError):
            line = parse_object(text)
            if _belongs(line):
                found.append(line)
    return found, len(texts) - len(found)


def _belongs(line: Mapping[str, Any]) -> bool:
    """Whether the fields that are read here are of the kinds that `Record` writes."""
    words = [line[name] for name in _WORDS if name in line]
    if not all(isinstance(word, str) for word in words):
        return False
    if not is_row(line):
        return "figure" not in line or "phase" in line
    item, seconds = line.get("item"), line.get("seconds")
    return type(item) is int and isinstance(seconds, int | float) and "phase" in line


def is_row(line: Mapping[str, Any]) -> bool:
    """Whether a line says how a phase ended."""
    return "result" in line and "figure" not in line


def as_document(lines: Iterable[Mapping[str, Any]]) -> str:
    """A record as a page of the documents: card, date, command, phases, figures."""
    every = list(lines)
    head = next((line for line in every if "command" in line), {})
    rows = [line for line in every if is_row(line)]
    card = next((line["gpu"] for line in every if "gpu" in line), "no card")
    said = {name: _cell(head.get(name, "?")) for name in ("command", "date", "torch", "python")}
    page = [f"## {_cell(card)}, {said['date'][:10]}", ""]
    page += [f"`{said['command']}`, torch {said['torch']}, Python {said['python']}", ""]
    if head.get("tiny") or head.get("device") == "cpu":
        page += ["A rehearsal: no figure here is one of a card.", ""]
    page += ["| item | phase | seconds | result |", "|---|---|---|---|"]
    for row in rows:
        cells = (row["item"], row["phase"], f"{row['seconds']:.0f}", said_of(row))
        page.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for row in rows:
        figures = [line for line in every if "figure" in line and line.get("phase") == row["phase"]]
        if figures:
            page += [
                "",
                f"### {row['item']}. {_cell(row['phase'])}",
                "",
                "| figure | values |",
                "|---|---|",
            ]
            page += [f"| {_cell(line['figure'])} | {_cell(_values(line))} |" for line in figures]
    return "\n".join(page) + "\n"


def _values(line: Mapping[str, Any]) -> str:
    """Numbers and short texts; lists and tables stay in the record."""
    names = [name for name in line if name not in ("item", "phase", "figure", "at_s", "seconds")]
    values = {name: line[name] for name in names if not isinstance(line[name], dict | list)}
    values = {name: value for name, value in values.items() if value != ""}
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    return printable(str(value)).replace("|", "\\|")
