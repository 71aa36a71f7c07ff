"""Rows of a manifest found by their key, from disk: `merge --on` puts their columns beside another's."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.resumable_write import identity
from trainer.data.manifest.table_io import Batch, ParquetTable, column_type, open_table
from trainer.data.tools.keys import digests
from trainer.runlog.progress import RowProgress


class Lookup:
    """One manifest by a column. Two rows with one key are a ManifestError: which would it be?"""

    def __init__(self, source: Path, on: str, present: Collection[str] = ()) -> None:
        """Columns that are `present` already are not looked up."""
        self.source, self._on = source, on
        with contextlib.closing(open_table(source, (on,))) as table:
            self.names = [name for name in table.names if name != on and name not in present]
            self._schema = table.schema if isinstance(table, ParquetTable) else None
        if self._schema is not None:
            for name in self.names:
                _refuse_bytes(source, self._schema.field(name))
        self._file: sqlite3.Connection | None = None
        self._used: Any = None  # one bool a row, in a file: marks outlive a kill
        self.unused = 0  # rows whose key no row asked for

    def identity(self) -> dict[str, Any]:
        return identity(self.source)

    def types(self) -> dict[str, Any]:
        """Arrow type of each column that it adds to a parquet file."""
        import pyarrow as pa

        if self._schema is not None:
            return {name: self._schema.field(name).type for name in self.names}
        from trainer.data.manifest import arrow

        with contextlib.closing(open_table(self.source)) as table:
            kinds = arrow.guess_types(table)
        return {
            name: column_type(name)
            or arrow.schema_of([name], kinds).field(name).type
            or pa.string()
            for name in self.names
        }

    def fill(self, path: Path, progress: RowProgress) -> list[WrongRow]:
        """Write the file that `open` reads; returns the rows that had to be left out of it."""
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(fresh)) as file:
            file.execute("PRAGMA journal_mode = OFF")  # made again after a kill
            file.execute("PRAGMA synchronous = OFF")
            file.execute(
                "CREATE TABLE rows (key BLOB PRIMARY KEY, number INT, line INT, cells TEXT) "
                "WITHOUT ROWID"
            )
            wrong = self._insert(file, progress)
            file.commit()
        _marks(path).unlink(missing_ok=True)
        fresh.replace(path)
        return wrong

    def open(self, path: Path) -> None:
        """Use a file that was filled."""
        self._file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        (count,) = self._file.execute("SELECT count(*) FROM rows").fetchone()
        marks = _marks(path)
        mode: Any = "r+" if marks.is_file() else "w+"
        self._used = np.memmap(marks, bool, mode, shape=(count,)) if count else np.zeros(0, bool)
        self.unused = count - int(np.count_nonzero(self._used))

    def _insert(self, file: sqlite3.Connection, progress: RowProgress) -> list[WrongRow]:
        wrong: list[WrongRow] = []
        number = 0
        with contextlib.closing(open_table(self.source, (self._on,))) as table:
            while (batch := table.read(4096)) is not None:
                columns = [batch.column(name) for name in self.names]
                cells = [json.dumps(row, default=str) for row in zip(*columns, strict=True)]
                keys = digests(batch, [self._on])
                try:
                    file.executemany(
                        "INSERT INTO rows VALUES (?, ?, ?, ?)",
                        zip(
                            keys,
                            range(number, number + len(batch)),
                            batch.lines,
                            cells,
                            strict=True,
                        ),
                    )
                except sqlite3.IntegrityError:
                    raise self._twice(file, batch, keys) from None
                number += len(batch)
                progress.at(table.share / 2, batch.start + len(batch))
            wrong += table.wrong
        return [WrongRow(row.line, f"{self.source.name}: {row.reason}") for row in wrong]

    def _twice(
        self, file: sqlite3.Connection, batch: Batch, keys: Sequence[bytes]
    ) -> ManifestError:
        lines: dict[bytes, int] = {}
        for key, line, value in zip(keys, batch.lines, batch.column(self._on), strict=True):
            row = file.execute("SELECT line FROM rows WHERE key = ?", (key,)).fetchone()
            first = lines.setdefault(key, row[0] if row else line)
            if first != line:
                fresh = f"unique{self.source.suffix}"
                return ManifestError(
                    f"{self.source}: {self._on} {value!r} stands in line {first} and in line {line}",
                    hint=f"python -m trainer.data dedupe {self.source} {fresh} --on {self._on}",
                )
        return ManifestError(f"{self.source}: a {self._on} stands there twice")

    def columns(self, batch: Batch) -> tuple[dict[str, list[Any]], int]:
        """Values for each row of a batch, empty where this manifest has no such row; how many those are."""
        assert self._file is not None
        found, missed = [], 0
        for key in digests(batch, [self._on]):
            row = self._file.execute(
                "SELECT cells, number FROM rows WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                missed += 1
                found.append([None] * len(self.names))
                continue
            self.unused -= not self._used[row[1]]
            self._used[row[1]] = True
            found.append([None if value == "" else value for value in json.loads(row[0])])
        columns = {name: [row[at] for row in found] for at, name in enumerate(self.names)}
        return columns, missed

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _refuse_bytes(source: Path, field: Any) -> None:
    """Cells wait as JSON, which holds no bytes."""
    if "binary" in str(field.type):
        raise ManifestError(
            f"{source}: column {field.name!r} is {field.type}, which merge --on cannot carry",
            hint="write it as text, or leave it out",
        )


def _marks(path: Path) -> Path:
    return path.with_suffix(".used")
