"""Manifests as views of DuckDB, and rows that a query chooses as a new manifest.

DuckDB reads a csv itself where its quotes leave no doubt and every row has all cells; any other csv
is copied first, without the wrong rows that `CsvTable` names. Columns are c0, c1, … in the file's
order, because DuckDB ignores case in names. Cells of a csv are VARCHAR and stay the text they are.
"""
# ruff: noqa: S608 - columns and views are named by number, paths are quoted

from __future__ import annotations

import codecs
import contextlib
import csv
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb.func import PythonUDFType

from trainer.data.manifest.manifest import FIELD_LIMIT, ManifestError, WrongRow
from trainer.data.manifest.table_io import (
    CsvTable,
    ParquetTable,
    column_type,
    first_line,
    open_table,
)

if TYPE_CHECKING:
    from typing_extensions import Self

MEMORY = "400MB"  # DuckDB spills to the work folder above; Python and Arrow take 200 MB more
BATCH_ROWS = 16_384
_BLOCK_BYTES = 1 << 22
_T = TypeVar("_T")
_WHOLE = "-?(0|[1-9][0-9]{0,17})"  # no leading zeros: 007 is a name
# Bytes that are not UTF-8 wait in a VARCHAR as characters of this private range. A file that has
# such characters itself is escaped too, so that every byte comes back.
_ESCAPED = range(0x10FF80, 0x110000)
_TO_SURROGATES = {code: 0xDC80 + code - 0x10FF80 for code in _ESCAPED}
_ESCAPES = {surrogate: chr(code) for code, surrogate in _TO_SURROGATES.items()} | {
    code: "".join(chr(0x10FF00 + byte) for byte in chr(code).encode()) for code in _ESCAPED
}
_ESCAPED_LEADS = (b"\xf4\x8f\xbe", b"\xf4\x8f\xbf")


def quoted(text: object) -> str:
    """A string literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A column name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def unescaped(text: str) -> str:
    """With surrogate escapes for bytes that are not UTF-8."""
    return text.translate(_TO_SURROGATES)


def escaped(text: str) -> str:
    """As the cells of an escaped source are: without surrogates."""
    return text if text.isascii() else text.translate(_ESCAPES)


@dataclass(frozen=True)
class Source:
    """A manifest as the view `view` with columns c0, c1, …; `wrong` are rows left out of it."""

    path: Path
    view: str
    names: tuple[str, ...]
    types: tuple[str, ...]  # DuckDB's
    rows: int
    wrong: list[WrongRow]
    is_escaped: bool = False
    schema: pa.Schema | None = None  # of a parquet file

    @property
    def is_csv(self) -> bool:
        return self.schema is None

    @property
    def has_only_numbers_and_texts(self) -> bool:
        return all(kind == "VARCHAR" or _is_number(kind) for kind in self.types)

    def text(self, name: str) -> str:
        """SQL for a cell as a csv has it; a null is the empty text."""
        place = self.names.index(name)
        kind, column = self.types[place], f"c{place}"
        if self.is_csv:
            return column
        if kind == "BOOLEAN":
            return f"CASE {column} WHEN true THEN 'True' WHEN false THEN 'False' ELSE '' END"
        if kind == "FLOAT":  # as Python and numpy show it
            column = f"CAST({column} AS DOUBLE)"
        if kind == "BLOB":
            column = f"decode({column})"
        return f"coalesce(CAST({column} AS VARCHAR), '')"

    def number(self, name: str) -> str:
        """SQL for a cell as DOUBLE; null where it is none."""
        place = self.names.index(name)
        is_plain = _is_number(self.types[place]) or self.types[place] == "BOOLEAN"
        return f"TRY_CAST({f'c{place}' if is_plain else self.text(name)} AS DOUBLE)"

    def key(self, names: Sequence[str]) -> str:
        """SQL for 128 bits that are equal for equal cells; 24 and "24" are the same."""
        texts = [self.text(name) for name in names]
        if len(texts) > 1:  # the lengths tell where a cell ends
            texts = [part for text in texts for part in (f"length({text})", "':'", text)]
        return f"md5_number(concat({', '.join(texts)}))"

    def keys(self, names: Sequence[str]) -> str:
        """A query for the row number n, from 0, and the key k of each row."""
        return f"SELECT row_number() OVER () - 1 AS n, {self.key(names)} AS k FROM {self.view}"

    def lines(self, rows: Sequence[int]) -> dict[int, int]:
        """Lines of the file in which these rows of the view stand."""
        if not self.is_csv:
            return {row: row + 1 for row in rows}
        wanted = set(rows)
        found: dict[int, int] = {}
        with contextlib.closing(CsvTable(self.path)) as table:
            while len(found) < len(wanted) and (batch := table.read(8192)) is not None:
                for row in wanted & set(range(batch.start, batch.start + len(batch.rows))):
                    found[row] = batch.lines[row - batch.start]
        return found


def _is_number(kind: str) -> bool:
    whole = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
    return kind in ("DOUBLE", "FLOAT") or kind.removeprefix("U") in whole


class Database:
    """DuckDB in memory that spills to `folder`. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection = duckdb.connect()
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._pool = ThreadPoolExecutor(8)
        self._files: list[str] = []
        self._descriptors: list[int] = []
        self._views = 0
        for name, value in (
            ("memory_limit", quoted(MEMORY)),
            ("threads", str(min(4, os.cpu_count() or 1))),
            ("temp_directory", quoted(folder / "spill")),
            ("preserve_insertion_order", "true"),
            ("autoinstall_known_extensions", "false"),
            ("autoload_known_extensions", "false"),
            ("python_enable_replacements", "false"),
        ):
            self.all(f"SET GLOBAL {name} = {value}")

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

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a small result. Raises ManifestError as `stream` does."""
        cursor = self._cursor()
        return self._wait(self._pool.submit(lambda: cursor.execute(query).fetchall()))

    def stream(self, query: str, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """The result in order, read one batch ahead. Raises ManifestError for a failed query."""
        cursor = self._cursor()
        opened = self._pool.submit(lambda: cursor.execute(query).to_arrow_reader(rows))
        reader = self._wait(opened)
        following = self._pool.submit(next, reader, None)
        while (batch := self._wait(following)) is not None:
            following = self._pool.submit(next, reader, None)
            if batch.num_rows:
                yield batch

    def column(self, query: str) -> np.ndarray[Any, Any]:
        """A result of one column of numbers."""
        cursor = self._cursor()
        found = self._wait(self._pool.submit(lambda: cursor.execute(query).fetchnumpy()))
        return np.asarray(next(iter(found.values())))

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        self._cursors.append(self._connection.cursor())
        return self._cursors[-1]

    def add(self, path: Path, required: Sequence[str] = ()) -> Source:
        """A view of a manifest. Raises ManifestError as `open_table` does."""
        view = f"t{self._views}"
        self._views += 1
        with contextlib.closing(open_table(path, required)) as table:
            if isinstance(table, CsvTable):
                return self._add_csv(table, view)
            return self._add_parquet(table, view)

    def _add_csv(self, table: CsvTable, view: str) -> Source:
        width, rows = len(table.names), None
        # In a file of one column an empty line may be a cell.
        commas = _commas_if_plain(table.source) if width > 1 else None
        if commas is not None:
            with contextlib.suppress(ManifestError):
                rows = self._view(view, table.source, _csv_reader(width))
        # DuckDB takes no offence at a comma behind the last cell.
        is_escaped = rows is None or commas != (width - 1) * (rows + 1)
        if is_escaped:
            copy = self._folder / f"{view}.csv"
            copy_rows(table, copy)
            try:
                rows = self._view(view, copy, _csv_reader(width))
            except ManifestError:  # lines longer than DuckDB's 2 MB, for which it takes more memory
                longest = f", max_line_size = {4 * FIELD_LIMIT}, buffer_size = {8 * FIELD_LIMIT}"
                rows = self._view(view, copy, _csv_reader(width, longest))
        assert rows is not None
        types = ("VARCHAR",) * width
        return Source(table.source, view, table.names, types, rows, table.wrong, is_escaped)

    def _add_parquet(self, table: ParquetTable, view: str) -> Source:
        path = table.source
        if table.is_cast:
            path = self._folder / f"{view}.parquet"
            with pq.ParquetWriter(path, table.schema) as writer:
                for batch in table.batches(BATCH_ROWS):
                    writer.write_batch(batch)
        columns = ", ".join(f"c{place}" for place in range(len(table.names)))
        try:
            rows = self._view(
                view, path, f"read_parquet({{}}, hive_partitioning = false) AS t({columns})"
            )
        except ManifestError as error:
            raise ManifestError(
                f"{table.source}: not a readable parquet manifest: {error}"
            ) from None
        types = tuple(row[1] for row in self.all(f"DESCRIBE {view}"))
        return Source(table.source, view, table.names, types, rows, [], schema=table.schema)

    def _view(self, view: str, path: Path, reader: str) -> int:
        """Make a view over a reader with {} for the file; its number of rows."""
        name = str(path.absolute())
        if any(sign in name for sign in "*?["):  # DuckDB would look for files of such names
            self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            name = f"/proc/self/fd/{self._descriptors[-1]}"
        self._files.append(name)
        self.all(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {reader.format(quoted(name))}")
        return int(self.all(f"SELECT count(*) FROM {view}")[0][0])

    def python_pattern(self, pattern: str) -> str:
        """A function of SQL that finds a regular expression of Python in a text."""
        search = re.compile(pattern).search
        name = f"python_pattern_{len(self._cursors)}"
        self._connection.create_function(
            name,
            lambda texts: pa.array([bool(search(unescaped(t))) for t in texts.to_pylist()]),
            [duckdb.sqltypes.VARCHAR],
            duckdb.sqltypes.BOOLEAN,
            type=PythonUDFType.ARROW,
        )
        self._cursor()
        return name

    def seal(self) -> None:
        """From now on no query opens another file, and no setting changes."""
        files = ", ".join(quoted(path) for path in self._files)
        self.all(f"SET allowed_paths = [{files}]")
        self.all("SET enable_external_access = false")
        self.all("SET lock_configuration = true")

    def fields(self, source: Source, names: Sequence[str]) -> list[pa.Field]:
        """Arrow's fields of columns: a parquet file's own; of a csv, where the column is not one of
        ours, int64, double or string, as all of its cells are."""
        if source.schema is not None:
            return [source.schema.field(name) for name in names]
        types = {name: column_type(name) for name in names}
        unknown = [name for name, kind in types.items() if kind is None]
        tests = []
        for name in unknown:
            cell = source.text(name)
            is_whole = f"regexp_full_match({cell}, '{_WHOLE}')"
            is_real = (
                f"(TRY_CAST({cell} AS DOUBLE) IS NOT NULL AND NOT contains({cell}, '_') "
                f"AND NOT regexp_full_match({cell}, '-?0[0-9]+'))"
            )
            tests += [f"bool_and({cell} = '' OR {test})" for test in (is_whole, is_real)]
            tests.append(f"coalesce(bool_or({cell} <> ''), false)")
        found = self.all(f"SELECT {', '.join(tests)} FROM {source.view}")[0] if tests else ()
        for name, *is_all in zip(unknown, found[::3], found[1::3], found[2::3], strict=True):
            is_whole, is_real, is_seen = is_all
            kind = pa.int64() if is_whole else pa.float64() if is_real else pa.string()
            types[name] = kind if is_seen else pa.string()
        return [pa.field(name, types[name]) for name in names]


def _csv_reader(columns: int, more: str = "") -> str:
    """SQL that reads a csv, with {} for the file."""
    names = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(columns))
    return (
        f"read_csv({{}}, columns = {{{{{names}}}}}, auto_detect = false, header = true, "
        "delim = ',', quote = '\"', escape = '\"', comment = '', nullstr = '\x01', "
        f"strict_mode = true, hive_partitioning = false{more})"
    )


def _blocks(path: Path) -> Iterator[tuple[np.ndarray[Any, Any], bytes]]:
    """Blocks of a file, each between its neighbours' bytes, and the block as bytes."""
    with path.open("rb") as file:
        before = b"\n"
        if file.peek(3)[:3] == codecs.BOM_UTF8:
            file.read(3)
        while block := file.read(_BLOCK_BYTES):
            after = file.peek(1)[:1] or b"\n"
            yield np.frombuffer(before + block + after, np.uint8), block
            before = block[-1:]


def _commas_if_plain(path: Path) -> int | None:
    """Commas between the cells of a file in which every reader finds the same cells; else None.

    Such a file is UTF-8. A quote that opens has a comma or the end of a line before it, one that
    closes has one behind it; inside they are doubled. Cells near FIELD_LIMIT are for `CsvTable`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    opened = count = since_quote = 0
    try:
        for padded, block in _blocks(path):
            decoder.decode(block)
            if b"\0" in block or any(lead in block for lead in _ESCAPED_LEADS):
                return None
            inner = padded[1:-1]
            quotes = np.flatnonzero(inner == ord('"'))
            opens = (np.arange(len(quotes)) + opened) % 2 == 0
            beside = np.where(opens, padded[quotes], padded[quotes + 2])
            if not np.isin(beside, np.frombuffer(b',\r\n"', np.uint8)).all():
                return None
            if len(quotes):
                starts = quotes if quotes[0] == 0 else np.concatenate(([0], quotes))
                sums = np.add.reduceat(inner == ord(","), starts, dtype=np.int64)
                count += int(sums[opened if quotes[0] else 1 - opened :: 2].sum())
                since_quote = 0
            elif opened:
                since_quote += len(block)
            else:
                count += block.count(b",")
            opened = (opened + len(quotes)) % 2
            if since_quote > FIELD_LIMIT:
                return None
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    return None if opened else count


def copy_rows(table: CsvTable, out: Path) -> None:
    """The good rows of a csv, in UTF-8; `table.wrong` has the others."""
    with out.open("w", newline="", encoding="utf-8") as file:
        # All in quotes: a lone empty cell and a lone return stay what they are.
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(range(len(table.names)))
        while (batch := table.read(8192)) is not None:
            for row in batch.rows:
                writer.writerow(map(escaped, row))
