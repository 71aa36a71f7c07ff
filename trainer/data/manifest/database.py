"""DuckDB over manifests: each is a view.

DuckDB reads a csv itself where its quotes leave no doubt and every row has all cells; any other csv
is copied first, without the wrong rows that `CsvTable` names.
"""
# ruff: noqa: S608 - columns and views are named by number, paths are quoted

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb.func import PythonUDFType

from trainer.data.manifest.manifest import FIELD_LIMIT, ManifestError
from trainer.data.manifest.places import folder_of, normal
from trainer.data.manifest.row_check import is_utf8
from trainer.data.manifest.sql import ESCAPED_LEADS, Source, escaped, quoted, unescaped
from trainer.data.manifest.table_io import CsvTable, ParquetTable, first_line, open_table

if TYPE_CHECKING:
    from typing_extensions import Self

MEMORY = "400MB"  # DuckDB spills to the work folder above; Python and Arrow take 200 MB more
BATCH_ROWS = 16_384
_BLOCK_BYTES = 1 << 22
# A cell, or its part up to a doubled quote. The quote comes first because that is searched fast.
_QUOTED = re.compile(rb'"(?<![^,\r\n"]")[^"]*"(?![^,\r\n"])')
_T = TypeVar("_T")


class Database:
    """DuckDB in memory that spills to `folder`. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "threads": min(4, os.cpu_count() or 1),
                "temp_directory": str(folder / "spill"),
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
            }
        )
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._pool = ThreadPoolExecutor(8)
        self._files: list[str] = []
        self._descriptors: list[int] = []
        self._numbers = itertools.count()  # of views and functions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._interrupt()
        self._pool.shutdown()
        self._connection.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _interrupt(self) -> None:
        for cursor in (self._connection, *self._cursors):
            cursor.interrupt()

    def _wait(self, future: Future[_T]) -> _T:
        """Queries run in threads: in the main thread a Ctrl-C is a RuntimeError, or is not seen."""
        try:
            return future.result()
        except duckdb.Error as error:
            raise ManifestError(f"DuckDB: {first_line(error)}") from error
        except KeyboardInterrupt:
            self._interrupt()
            raise

    def _result(self, query: str, fetch: Callable[[duckdb.DuckDBPyConnection], _T]) -> _T:
        """What `fetch` makes of the result. Raises ManifestError for a failed query."""
        cursor = self._connection.cursor()
        self._cursors.append(cursor)
        return self._wait(self._pool.submit(lambda: fetch(cursor.execute(query))))

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a small result."""
        return self._result(query, lambda result: result.fetchall())

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """The result in order, read one batch ahead."""
        reader = self._result(query, lambda result: result.to_arrow_reader(BATCH_ROWS))
        following = self._pool.submit(next, reader, None)
        while (batch := self._wait(following)) is not None:
            following = self._pool.submit(next, reader, None)
            if batch.num_rows:
                yield batch

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a large result in order."""
        for batch in self.stream(query):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def columns(self, view: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Columns by name, each with its SQL, of all rows of a view in order."""
        for batch in self.stream(f"SELECT {', '.join(columns.values())} FROM {view}"):
            yield pa.RecordBatch.from_arrays(batch.columns, list(columns))

    def column(self, query: str) -> np.ndarray[Any, Any]:
        """A result of one column of numbers."""
        found = self._result(query, lambda result: result.fetchnumpy())
        return np.asarray(next(iter(found.values())))

    def view(self, query: str) -> str:
        """A new view of a query; its name."""
        name = f"t{next(self._numbers)}"
        self.all(f"CREATE VIEW {name} AS {query}")
        return name

    def add(
        self,
        path: Path,
        required: Sequence[str] = (),
        root: Path | None = None,
        others: Mapping[str, str] | None = None,
    ) -> Source:
        """A view of a manifest; its relative paths start in its folder, or in `root`. Raises
        ManifestError as `open_table` does, which has `others`."""
        with contextlib.closing(open_table(path, required, others)) as table:
            if isinstance(table, CsvTable):
                source = self._add_csv(table)
            else:
                source = self._add_parquet(table)
        folder = root.resolve() if root is not None else folder_of(path)
        return replace(source, folder=str(folder), normal=self._normal, others=others)

    @cached_property
    def _normal(self) -> str:
        """A function of SQL that gives absolute paths one spelling."""
        name = f"normal_path_{next(self._numbers)}"
        self._connection.create_function(
            name,
            lambda paths: pa.array([normal(path) for path in paths.to_pylist()]),
            [duckdb.sqltypes.VARCHAR],
            duckdb.sqltypes.VARCHAR,
            type=PythonUDFType.ARROW,
        )
        return name

    def _add_csv(self, table: CsvTable) -> Source:
        width, view, rows = len(table.names), "", None
        # In a file of one column an empty line may be a cell.
        commas = _commas_if_plain(table.source) if width > 1 else None
        if commas is not None:
            with contextlib.suppress(ManifestError):
                view, rows = self._view_of(table.source, _csv_reader(width))
        # DuckDB takes no offence at a comma behind the last cell.
        is_escaped = rows is None or commas != (width - 1) * (rows + 1)
        if is_escaped:
            copy = self._folder / f"{next(self._numbers)}.csv"
            _copy_rows(table, copy)
            try:
                view, rows = self._view_of(copy, _csv_reader(width))
            except ManifestError:  # lines longer than DuckDB's 2 MB, for which it takes more memory
                longest = f", max_line_size = {4 * FIELD_LIMIT}, buffer_size = {8 * FIELD_LIMIT}"
                view, rows = self._view_of(copy, _csv_reader(width, longest))
        assert rows is not None
        types = ("VARCHAR",) * width
        return Source(table.source, view, table.names, types, rows, table.wrong, is_escaped)

    def _add_parquet(self, table: ParquetTable) -> Source:
        path = table.source
        if table.is_cast:
            path = self._folder / f"{next(self._numbers)}.parquet"
            with pq.ParquetWriter(path, table.schema) as writer:
                for batch in table.batches(BATCH_ROWS):
                    writer.write_batch(batch)
        columns = ", ".join(f"c{place}" for place in range(len(table.names)))
        reader = f"read_parquet({{}}, hive_partitioning = false) AS t({columns})"
        try:
            view, rows = self._view_of(path, reader)
        except ManifestError as error:
            raise ManifestError(
                f"{table.source}: not a readable parquet manifest: {error}"
            ) from None
        types = tuple(row[1] for row in self.all(f"DESCRIBE {view}"))
        return Source(table.source, view, table.names, types, rows, [], schema=table.schema)

    def _view_of(self, path: Path, reader: str) -> tuple[str, int]:
        """A view over a reader with {} for the file, and its number of rows."""
        name = str(path.absolute())
        # DuckDB would look for files of such names, and takes no query that is not UTF-8.
        if any(sign in name for sign in "*?[") or not is_utf8(name):
            self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            name = f"/proc/self/fd/{self._descriptors[-1]}"
        self._files.append(name)
        view = self.view(f"SELECT * FROM {reader.format(quoted(name))}")
        return view, int(self.all(f"SELECT count(*) FROM {view}")[0][0])

    def python_pattern(self, pattern: str) -> str:
        """A function of SQL that finds a regular expression of Python in a text."""
        search = re.compile(pattern).search
        name = f"python_pattern_{next(self._numbers)}"
        self._connection.create_function(
            name,
            lambda texts: pa.array([bool(search(unescaped(t))) for t in texts.to_pylist()]),
            [duckdb.sqltypes.VARCHAR],
            duckdb.sqltypes.BOOLEAN,
            type=PythonUDFType.ARROW,
        )
        return name

    def seal(self) -> None:
        """From now on no query opens another file, and no setting changes."""
        files = ", ".join(quoted(path) for path in self._files)
        self.all(f"SET allowed_paths = [{files}]")
        self.all("SET enable_external_access = false")
        self.all("SET lock_configuration = true")


def _csv_reader(columns: int, more: str = "") -> str:
    """SQL that reads a csv, with {} for the file."""
    names = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(columns))
    return (
        f"read_csv({{}}, columns = {{{{{names}}}}}, auto_detect = false, header = true, "
        "delim = ',', quote = '\"', escape = '\"', comment = '', nullstr = '\x01', "
        f"strict_mode = true, hive_partitioning = false{more})"
    )


def _commas_if_plain(path: Path) -> int | None:
    """Commas between the cells of a file in which every reader finds the same cells; else None.

    Such a file is UTF-8. A quote that opens has a comma or the end of a line before it, one that
    closes has one behind it; inside they are doubled. Cells near FIELD_LIMIT are for `CsvTable`.
    """
    commas, rest = 0, b""
    with path.open("rb") as file:
        if file.read(3) != codecs.BOM_UTF8:
            file.seek(0)
        while block := file.read(_BLOCK_BYTES) + file.readline():
            try:
                block.decode()
            except UnicodeDecodeError:
                return None
            if b"\0" in block or any(lead in block for lead in ESCAPED_LEADS):
                return None
            text = rest + block
            last = text.rfind(b'"') if text.count(b'"') % 2 else len(text)  # it opens a cell
            text, rest = text[:last], text[last:]
            outside = _QUOTED.sub(b"", text)
            if b'"' in outside or (rest and text[-1:] not in b',\r\n"') or len(rest) > FIELD_LIMIT:
                return None
            commas += outside.count(b",")
    return None if rest else commas


def _copy_rows(table: CsvTable, out: Path) -> None:
    """The good rows of a csv, in UTF-8; `table.wrong` has the others."""
    with out.open("w", newline="", encoding="utf-8") as file:
        # All in quotes: a lone empty cell and a lone return stay what they are.
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(range(len(table.names)))
        for _, rows in table.batches(8192):
            writer.writerows(map(escaped, row) for row in rows)
