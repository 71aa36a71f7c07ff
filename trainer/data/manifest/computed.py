"""Cells that take long to compute for each row, kept as they come: a killed verb continues.

`answers.csv` in the work folder has a line for each row in order; `state.json` says how many of its
bytes count. At the end the manifest is written with these cells as columns.
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import csv
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from trainer.data.manifest.rewrite import Columns, Rewrite, Rows
from trainer.data.manifest.row_check import is_utf8
from trainer.data.manifest.sql import Source, unescaped
from trainer.data.manifest.work_folder import WorkFolder
from trainer.errors import TrainerError

FLUSH_ROWS = 65_536  # rows that a kill may cost,
FLUSH_S = 10.0  # and seconds of work where a row takes long
REASON = "left out"  # the last column of answers: why a row is left out, mostly empty

Cells = list[str]
# From the cells of some rows to a function that waits for their answers: the cells of the new
# columns, then the reason.
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
    columns `notes` too, which are not written. Raises ManifestError above the limit of wrong rows;
    what is computed stays, and the same command with a higher limit continues.
    """
    answers = _Answers(made.work, [*names, *notes, REASON], made.out.suffix == ".parquet")
    with answers:
        if answers.rows and not made.args.quiet:
            what, kept = f"{made.args.verb} {made.out.name}", answers.rows - answers.wrong
            print(f"{what}: {kept:,} rows are done already", file=sys.stderr)
        rows = _rows(made, source, inputs, answers.rows)
        for found in _asked_ahead(rows, ask, batch_rows, ahead):
            answers.add(found)
            made.progress.at(answers.rows / max(1, source.rows), answers.rows)
            if len(made.wrong) + answers.wrong > made.args.max_wrong_rows:
                answers.flush()
                made.leave_out(source, answers.reasons())
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
        self.path = work.folder / "answers.csv"
        self._work, self._names, self._is_utf8 = work, names, is_utf8
        state = work.state
        kept: int = state.get("bytes", 0)
        if not self.path.is_file() or self.path.stat().st_size < kept:
            kept, state = 0, {}  # lost or damaged
        self.rows: int = state.get("rows", 0)
        self.wrong: int = state.get("wrong", 0)
        self._flushed = time.monotonic(), self.rows
        # surrogateescape: cells may be any bytes
        text: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}
        self._file = self.path.open("r+" if kept else "w", **text)
        self._file.seek(kept)
        self._file.truncate()
        self._writer = csv.writer(self._file)
        if not kept:
            self._writer.writerow(names)

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
            self.wrong += cells[-1] != ""
        self._writer.writerows(answers)
        self.rows += len(answers)
        since, rows = self._flushed
        if self.rows - rows >= FLUSH_ROWS or time.monotonic() - since > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        if self.rows == self._flushed[1]:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self.path.stat().st_size
        self._work.state |= {"bytes": size, "rows": self.rows, "wrong": self.wrong}
        self._work.save()
        self._flushed = time.monotonic(), self.rows

    def reasons(self) -> dict[int, str]:
        """Why rows are left out, by row."""
        if not self.wrong:
            return {}
        with self.path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = islice(csv.reader(file), 1, None)
            return {row: cells[-1] for row, cells in enumerate(rows) if cells[-1]}
