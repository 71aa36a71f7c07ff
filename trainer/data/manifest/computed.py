"""Cells that take long to compute for each row, kept as they come: a killed verb continues.

`answers.csv` in the work folder has a line for each row in order; `state.json` says how many of its
bytes count. At the end the manifest is written with these cells as columns.
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import csv
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.manifest.rewrite import Columns, Rewrite, Rows
from trainer.data.manifest.row_check import is_utf8
from trainer.data.manifest.sql import Source, unescaped
from trainer.data.manifest.work_folder import WorkFolder
from trainer.errors import TrainerError
from trainer.runlog.units import counted

FLUSH_ROWS = 65_536  # rows that a kill may cost,
FLUSH_S = 10.0  # and seconds of work where a row takes long
REASON = "left out"  # the last column of answers: why a row is left out, mostly empty
# The column before it: whether the answer may be another one when the command continues, because
# the file system gave an error (AGAIN) or the storage of the file fails (STORAGE).
FAILED, NEVER, AGAIN, STORAGE = "failed", "", "again", "storage"

Cells = list[str]
_FILES = ("answers.csv", "answers-2.csv")
_TEXT: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
# From the cells of some rows to a function that waits for their answers: the cells of the new
# columns, then FAILED and the reason.
Ask = Callable[[list[Cells]], Callable[[], list[Cells]]]


def compute(
    made: Rewrite,
    source: Source,
    inputs: Sequence[str],
    names: Sequence[str],
    ask: Ask,
    batch_rows: int,
    ahead: int,
    notes: Sequence[str] = (),
) -> Rows:
    """The rows of a source with columns `names` that `ask` computes of the columns `inputs`.

    About `ahead` rows are asked for before the first of them must be there. Answers have the
    columns `notes` too, which are not written. Raises ManifestError above the limit of wrong rows,
    to which those count whose storage fails; what is computed stays, and the same command
    continues: it asks again for the rows that the file system had refused.
    """
    columns = [*names, *notes, FAILED, REASON]
    answers = _Answers(made.work, columns, made.out.suffix == ".parquet")
    with answers:
        failed = answers.failed() if answers.rows else []
        if answers.rows and not made.args.quiet:
            kept = answers.rows - max(answers.wrong, len(failed))
            text = f"{made.args.verb} {made.out.name}: {counted(kept, 'row')} done already"
            text += f"; {len(failed):,} that failed are asked for again" if failed else ""
            print(text, file=sys.stderr)
        if failed:
            every = islice(_rows(made, source, inputs, 0), answers.rows)
            again = set(failed)
            wanted = (cells for row, cells in enumerate(every) if row in again)
            found = itertools.chain.from_iterable(_asked_ahead(wanted, ask, batch_rows, ahead))
            answers.replace(dict(zip(failed, found, strict=True)))
        rows = _rows(made, source, inputs, answers.rows)
        for batch in itertools.chain([[]], _asked_ahead(rows, ask, batch_rows, ahead)):
            answers.add(batch)
            made.progress.at(answers.rows / max(1, source.rows), answers.rows)
            if len(made.wrong) + answers.wrong + answers.storage > made.args.max_wrong_rows:
                answers.flush()
                made.leave_out(source, answers.reasons(with_storage=True))
    keep = np.ones(source.rows, bool)
    reasons = answers.reasons()
    keep[list(reasons)] = False
    made.leave_out(source, reasons)
    beside = made.database.add(answers.path)
    return Rows(source, keep, [Columns(beside, names, beside.view)])


def _asked_ahead(
    rows: Iterator[Cells], ask: Ask, batch_rows: int, ahead: int
) -> Iterator[list[Cells]]:
    waiting: deque[Callable[[], list[Cells]]] = deque()
    while batch := list(islice(rows, batch_rows)):
        waiting.append(ask(batch))
        if len(waiting) * batch_rows > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def _rows(made: Rewrite, source: Source, names: Sequence[str], start: int) -> Iterator[Cells]:
    """Cells of some columns from row `start` on."""
    texts = ", ".join(source.text(name) for name in names)
    for row in made.database.rows(f"SELECT {texts} FROM {source.view} OFFSET {start}"):
        yield list(map(unescaped, row)) if source.is_escaped else list(row)


class _Answers:
    """A file of answers. A context manager; an expected failure keeps all that was added."""

    def __init__(self, work: WorkFolder, names: Sequence[str], is_utf8: bool) -> None:
        self._work, self._names, self._is_utf8 = work, names, is_utf8
        state = work.state
        self.path = work.folder / str(state.get("file", _FILES[0]))
        kept: int = state.get("bytes", 0)
        if not self.path.is_file() or self.path.stat().st_size < kept:
            kept, state = 0, {}  # lost or damaged
        self.rows: int = state.get("rows", 0)
        self.wrong: int = state.get("wrong", 0)
        self.storage: int = state.get("storage", 0)  # rows whose storage fails and that stay
        self._flushed = time.monotonic(), self.rows
        self._open("r+" if kept else "w", kept)
        if not kept:
            self._writer.writerow(names)

    def _open(self, mode: str, kept: int) -> None:
        # surrogateescape: cells may be any bytes
        self._file = self.path.open(mode, **_TEXT)
        self._file.seek(kept)
        self._file.truncate()
        self._writer = csv.writer(self._file)

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A Ctrl-C may come anywhere, as a kill does: a few seconds of work are done again.
        with self._file:
            if kind is None or issubclass(kind, TrainerError):
                self.flush()

    def add(self, answers: list[Cells]) -> None:
        for cells in answers:
            if self._is_utf8 and not cells[-1]:  # a parquet file holds no other bytes
                for name, cell in zip(self._names, cells, strict=True):
                    if not is_utf8(cell):
                        cells[-1] = f"{name} {repr(cell)[:60]} is not UTF-8"
                        break
            self._write(cells)
        since, rows = self._flushed
        if self.rows - rows >= FLUSH_ROWS or time.monotonic() - since > FLUSH_S:
            self.flush()

    def _write(self, cells: Cells) -> None:
        self.wrong += cells[-1] != ""
        self.storage += cells[-1] == "" and cells[-2] == STORAGE
        self._writer.writerow(cells)
        self.rows += 1

    def flush(self) -> None:
        if self.rows == self._flushed[1]:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        facts = {"file": self.path.name, "bytes": self.path.stat().st_size, "rows": self.rows}
        self._work.state |= {**facts, "wrong": self.wrong, "storage": self.storage}
        self._work.save()
        self._flushed = time.monotonic(), self.rows

    def replace(self, others: Mapping[int, Cells]) -> None:
        """Put other answers in the place of some rows. A kill leaves all as they were."""
        before, rows = self.path, self._cells(self.path)
        self._file.close()
        self.path = before.with_name(_FILES[before.name == _FILES[0]])
        self.rows = self.wrong = self.storage = 0
        self._open("w", 0)
        self._writer.writerow(self._names)
        for row, cells in enumerate(rows):
            self._write(others.get(row, cells))
        self._flushed = time.monotonic(), -1
        self.flush()
        before.unlink()

    def _cells(self, path: Path) -> Iterator[Cells]:
        """All that was added so far."""
        if not self._file.closed:
            self._file.flush()
        with path.open(**_TEXT) as file:
            yield from islice(csv.reader(file), 1, None)

    def failed(self) -> list[int]:
        """Rows that may be answered otherwise now."""
        return [row for row, cells in enumerate(self._cells(self.path)) if cells[-2]]

    def reasons(self, with_storage: bool = False) -> dict[int, str]:
        """Why rows are left out, by row; and which have a storage that fails."""
        found = {}
        if self.wrong or (with_storage and self.storage):
            for row, cells in enumerate(self._cells(self.path)):
                if cells[-1]:
                    found[row] = cells[-1]
                elif with_storage and cells[-2] == STORAGE:
                    found[row] = f"{cells[0]} (is its storage there?)"
        return found
