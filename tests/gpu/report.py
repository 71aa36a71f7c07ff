"""Where figures go when they come: NAME.jsonl, and a folder of at most three files to carry home.

A line is on the disk before the next measurement begins. The folder SEND has NAME.jsonl (renewed
with every line), NAME.txt (the table) and NAME.tar.gz (raw outputs and tracebacks; both after every
phase). Each is replaced in one step, so that a kill at any moment leaves whole files.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

KEPT = ("raw", "errors")  # folders of OUT that are carried home
MOST_BYTES = 15 << 20  # of a file that is carried
_MOST_OF_ONE = 4 << 20
_SHOWN = 110  # letters of a headline in the table


class Record:
    """Of one command. Raises OSError where OUT cannot be made; a disk that fills ends nothing."""

    def __init__(
        self, name: str, out: Path, send: Path | None, show: Callable[[str], None] = print
    ) -> None:
        self._name, self._out, self._send, self._show = name, out, send, show
        self._begin = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"{name}.jsonl"
        if self.path.exists():  # of an earlier call: what was measured stays
            self.path.rename(out / f"{name}-until-{time.time():.0f}.jsonl")
        self._file = self.path.open("ab", buffering=0)
        self._lines: list[bytes] = []

    def line(self, values: Mapping[str, Any]) -> None:
        """Print and keep one figure, one row of a phase, or the head."""
        at = {"at_s": round(time.monotonic() - self._begin, 1)}
        text = json.dumps(_strict({**values, **at}), default=str, allow_nan=False)
        self._lines.append(text.encode() + b"\n")
        try:
            self._file.write(self._lines[-1])
            os.fsync(self._file.fileno())
        except OSError as error:
            print(f"{self.path} lacks a line: {error}", file=sys.stderr)
        self._carry(f"{self._name}.jsonl", lambda: b"".join(self._lines))
        self._show(text)

    def table(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Print the table of all phases so far, and renew what is carried home."""
        text = table_of(rows)
        self._carry(f"{self._name}.txt", lambda: f"{text}\n".encode())
        self._carry(f"{self._name}.tar.gz", lambda: packed(self._out))
        self._show(text)

    def close(self) -> None:
        self._file.close()

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
            print(f"{self._send / name} is not renewed: {error}", file=sys.stderr)


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


def table_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Item, phase, seconds, and the headline or why there is none."""
    lines = [f"{'':>3} {'phase':<34} {'seconds':>8}  "]
    for row in rows:
        text = said_of(row)
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        lines.append(f"{row['item']:>3} {row['phase']:<34} {row['seconds']:8.1f}  {text}")
    return "\n".join(line.rstrip() for line in lines)


def said_of(row: Mapping[str, Any]) -> str:
    """The headline of a phase, behind its result where that is not "measured"."""
    parts = [] if row["result"] == "measured" else [str(row["result"]).upper()]
    parts += [str(row[name]) for name in ("reason", "headline") if row.get(name)]
    return ": ".join(parts)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What a record holds; a line that was cut by a kill is left out. Raises OSError."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def is_row(line: Mapping[str, Any]) -> bool:
    """Whether a line says how a phase ended."""
    return "result" in line and "figure" not in line


def as_document(lines: Iterable[Mapping[str, Any]]) -> str:
    """A record as a page of the documents: card, date, command, phases, figures."""
    every = list(lines)
    head = next((line for line in every if "command" in line), {})
    rows = [line for line in every if is_row(line)]
    card = next((str(line["gpu"]) for line in every if "gpu" in line), "no card")
    about = (f"torch {head.get('torch', '?')}", f"Python {head.get('python', '?')}")
    page = [f"## {card}, {str(head.get('date', '?'))[:10]}", ""]
    page += [f"`{head.get('command', '?')}`, {', '.join(about)}", ""]
    page += ["| item | phase | seconds | result |", "|---|---|---|---|"]
    for row in rows:
        cells = (row["item"], row["phase"], f"{row['seconds']:.0f}", said_of(row))
        page.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for row in rows:
        figures = [line for line in every if "figure" in line and line.get("phase") == row["phase"]]
        if figures:
            page += [
                "",
                f"### {row['item']}. {row['phase']}",
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
    return str(value).replace("|", "\\|").replace("\n", " ")
