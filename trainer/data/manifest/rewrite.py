"""A manifest written from the rows of others: it appears whole or not at all."""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.manifest.left_out import RESUME, check_limit, report
from trainer.data.manifest.manifest import ManifestError, WrongRow, check_suffix
from trainer.data.manifest.sql import BATCH_ROWS, Database, Source, unescaped
from trainer.data.manifest.table_io import ParquetTable, cell, first_line, is_text, open_table
from trainer.data.manifest.work_folder import WorkFolder
from trainer.runlog.progress import RowProgress

_ESCAPED_BYTE = re.compile(rb"\xf4\x8f([\xbe\xbf])([\x80-\xbf])")
_NEEDS_QUOTES = ",", '"', "\n", "\r"
_GROUP_ROWS = 65_536  # of a parquet file
_BAD, _SHOWN = "\0bad", "\0shown"  # columns beside those of the file


@dataclass(frozen=True)
class Columns:
    """Columns of a table: for each of its rows, or for the rows that `query` selects."""

    source: Source
    names: Sequence[str]
    query: Callable[[str], str] | None = None  # from the SQL of the columns

    def sql(self, columns: Sequence[str]) -> str:
        """A query for expressions over the columns, named v0, v1, …"""
        named = ", ".join(f"{column} AS v{n}" for n, column in enumerate(columns)) or "1"
        return self.query(named) if self.query else f"SELECT {named} FROM {self.source.view}"


@dataclass(frozen=True)
class Rows:
    """Rows of a source in their order; `keep` has a place for each.

    Columns of `beside` replace its own of the same names, others follow them.
    """

    source: Source
    keep: NDArray[np.bool_] | None = None
    beside: Sequence[Columns] = ()

    @property
    def names(self) -> list[str]:
        return [*dict.fromkeys([*self.source.names, *(n for b in self.beside for n in b.names)])]

    def streams(self, names: Sequence[str]) -> list[Columns]:
        """The source with those of the columns that are not replaced, then what is beside."""
        beside = {name for one in self.beside for name in one.names}
        # one at least, to count the rows
        own = [name for name in names if name not in beside] or self.source.names[:1]
        return [Columns(self.source, own), *self.beside]


@dataclass
class Rewrite:
    """One manifest in the making."""

    args: argparse.Namespace
    work: WorkFolder
    database: Database
    progress: RowProgress
    hint: str  # where too many rows are left out
    wrong: list[WrongRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for stderr
    rows: int = 0
    is_one_file: bool = True  # whether all wrong rows are of one

    @property
    def out(self) -> Path:
        return self.work.out

    def report(self, text: str) -> int:
        """Print what was made and what was left out; returns the exit code, 1 if rows were."""
        print(f"{self.out}: {text}")
        for note in self.notes:
            print(note, file=sys.stderr)
        report(self.wrong)
        return 1 if self.wrong else 0

    def add(self, path: Path, required: Sequence[str] = (), named: bool = False) -> Source:
        """A source; its wrong rows count, with the name of the file where there are several."""
        source = self.database.add(path, required)
        prefix = f"{path.name}: " if named else ""
        self.is_one_file &= not named
        self.leave_out([WrongRow(row.line, prefix + row.reason) for row in source.wrong])
        return source

    def leave_out(self, wrong: Sequence[WrongRow]) -> None:
        """Add rows that are not written. Raises ManifestError above the limit."""
        self.wrong += wrong
        if self.is_one_file:
            self.wrong.sort(key=lambda row: row.line)
        check_limit(self.out, self.wrong, self.args.max_wrong_rows, self.hint)

    def leave_out_rows(self, source: Source, reasons: Mapping[int, str]) -> None:
        """As `leave_out`, by number of the row in its source."""
        lines = source.lines(list(reasons))
        self.leave_out([WrongRow(lines[row], reason) for row, reason in reasons.items()])

    def columns(self, source: Source, names: Sequence[str]) -> list[str]:
        """SQL for columns as values of their types."""
        return [_value(source, one) for one in self.database.fields(source, names)]

    def write(self, parts: Sequence[Rows], names: Sequence[str] | None = None) -> None:
        """Write all parts one behind the other; `names` are the columns, by default all."""
        names = names or [*dict.fromkeys(name for part in parts for name in part.names)]
        if self.out.suffix == ".csv":
            self._write_csv(parts, names)
            return
        schema = self.schema(parts, names)
        with pq.ParquetWriter(self.work.whole, schema) as writer:
            for table in self.tables(parts, schema, _GROUP_ROWS):
                writer.write_table(table, row_group_size=_GROUP_ROWS)

    def _write_csv(self, parts: Sequence[Rows], names: Sequence[str]) -> None:
        header = io.StringIO()
        csv.writer(header).writerow(names)
        with self.work.whole.open("wb") as file:
            file.write(header.getvalue().encode("utf-8", "surrogateescape"))
            for part in parts:
                streams = part.streams(names)
                owner = {name: n for n, stream in enumerate(streams) for name in stream.names}
                runs = [(number, list(run)) for number, run in groupby(names, owner.__getitem__)]
                lines = [
                    _lines(self.database, stream, [run for n, run in runs if n == number])
                    for number, stream in enumerate(streams)
                ]
                is_escaped = any(stream.source.is_escaped for stream in streams)
                for start, batches in _aligned(lines, self.progress, part.source.rows):
                    cells = [iter(batch.columns) for batch in batches]
                    columns = [next(cells[number]) for number, _ in runs]
                    found = columns[0]
                    if len(columns) > 1:
                        found = pc.binary_join_element_wise(*columns, b",")
                    elif len(names) == 1:  # an empty line is not a row
                        found = pc.if_else(pc.equal(found, b""), b'""', found)
                    if part.keep is not None:
                        found = found.filter(pa.array(part.keep[start : start + len(found)]))
                    if not len(found):
                        continue
                    text = b"\r\n".join(found.to_pylist()) + b"\r\n"
                    file.write(_ESCAPED_BYTE.sub(_byte, text) if is_escaped else text)
                    self.rows += len(found)

    def tables(self, parts: Sequence[Rows], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
        """All rows as tables of `rows` rows, the last one shorter; at least one table."""
        batches = (batch for part in parts for batch in self._batches(part, schema))
        for held in _regrouped(batches, rows):
            yield pa.Table.from_batches(held, schema).combine_chunks()
        if not self.rows:
            yield pa.Table.from_batches([], schema)

    def _batches(self, part: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        streams = part.streams(schema.names)
        schemas = [pa.schema([schema.field(name) for name in one.names]) for one in streams]
        own = schemas[0]
        is_csv = part.source.is_csv
        feeds = [_typed(self.database, part.source, own) if is_csv else _arrow(streams[0])]
        for one, fields in zip(streams[1:], schemas[1:], strict=True):
            values = one.sql([_value(one.source, field) for field in fields])
            feeds.append(_named(self.database.stream(values), one.names))
        for start, batches in _aligned(feeds, self.progress, part.source.rows):
            count = batches[0].num_rows
            keep = np.ones(count, bool) if part.keep is None else part.keep[start : start + count]
            if is_csv:
                keep = self._fitting(part.source, own, batches[0], keep, start)
            arrays: dict[str, pa.Array] = {}
            for batch, fields in zip(batches, schemas, strict=True):
                found = batch if keep.all() else batch.filter(pa.array(keep))
                arrays |= {field.name: _cast(found, field) for field in fields}
            self.rows += int(keep.sum())
            yield pa.RecordBatch.from_arrays([arrays[n] for n in schema.names], schema=schema)

    def _fitting(
        self,
        source: Source,
        schema: pa.Schema,
        batch: pa.RecordBatch,
        keep: NDArray[np.bool_],
        start: int,
    ) -> NDArray[np.bool_]:
        """`keep` without the rows of a csv with a cell that does not fit into its column."""
        bad = batch.column(_BAD)
        if bad.null_count == len(bad):
            return keep
        is_bad = bad.is_valid().to_numpy(zero_copy_only=False)
        reasons = {}
        for place in np.flatnonzero(is_bad & keep).tolist():
            one = schema.field(bad[place].as_py())
            what = "a number"
            if is_text(one.type):
                what = "UTF-8"
            elif pa.types.is_integer(one.type):
                what = "an integer"
            shown = repr(unescaped(batch.column(_SHOWN)[place].as_py()))[:60]
            reasons[start + place] = f"{one.name} {shown} is not {what}"
        self.leave_out_rows(source, reasons)
        return keep & ~is_bad

    def schema(self, parts: Sequence[Rows], names: Sequence[str]) -> pa.Schema:
        """Types that hold the columns of all parts. Raises ManifestError where none does."""
        fields: dict[str, pa.Field] = {}
        for part in parts:
            for one in self.database.fields(part.source, part.source.names):
                fields[one.name] = _common(fields.get(one.name, one), one)
            for other in part.beside:
                for one in self.database.fields(other.source, other.names):
                    self._check_cells(other.source, one)
                    fields.setdefault(one.name, one)
        return pa.schema([fields[name] for name in names])

    def _check_cells(self, source: Source, one: pa.Field) -> None:
        """Raise ManifestError for a cell beside that does not fit: the row is another table's."""
        if not source.is_csv or is_text(one.type):
            return
        text = source.text(one.name)
        wrong = self.database.all(
            f"SELECT n, {text} FROM (SELECT *, row_number() OVER () - 1 AS n FROM {source.view}) "
            f"WHERE {text} <> '' AND {_value(source, one)} IS NULL LIMIT 1"
        )
        for row, shown in wrong:
            raise ManifestError(
                f"{source.path}: line {source.lines([row])[row]}: {one.name} "
                f"{unescaped(shown)!r} is not a number",
                hint="correct it, or write a csv",
            )


@contextmanager
def rewriting(
    args: argparse.Namespace,
    sources: Sequence[Path],
    arguments: Mapping[str, Any] | None = None,
    is_folder: bool = False,
) -> Iterator[Rewrite]:
    """Make `args.out`, a manifest or a folder; it appears whole when the block ends well.

    `args` has the verb and what `add_options` adds. With `arguments`, which decide the result
    beside the sources, a failure keeps the work folder, and the same command finds it. Raises
    ManifestError for an unusable source, an existing result, more wrong rows than allowed, and a
    disk that is full.
    """
    out: Path = args.out
    if not is_folder:
        check_suffix(out)
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ManifestError(f"{out} is read and cannot be written at the same time")
        open_table(source).close()
    hint, failed = "--max-wrong-rows allows more", "nothing was written"
    # the process's number: nothing that an earlier one left is used
    key: dict[str, Any] = {"verb": args.verb, "process": os.getpid()}
    if arguments is not None:
        hint, failed = f"{hint}; {RESUME}", f"finished work is kept; {RESUME}"
        facts = [(path, path.stat()) for path in sources]
        files = [[str(path.resolve()), one.st_size, one.st_mtime_ns] for path, one in facts]
        key = {"verb": args.verb, "sources": files, **arguments}
    with (
        RowProgress(f"{args.verb} {out.name}", args.quiet) as progress,
        WorkFolder(out, key, force=args.force) as work,
    ):
        try:
            with Database(work.folder) as database:
                yield Rewrite(args, work, database, progress, hint)
            work.publish()
        except OSError as error:
            where = error.filename or work.folder
            raise ManifestError(f"{where}: {error.strerror or error}", hint=failed) from None
        finally:
            if arguments is None:
                shutil.rmtree(work.folder, ignore_errors=True)


def _regrouped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches that have `rows` rows together, the last ones fewer."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= rows:
            head = batch.slice(0, rows - count)
            yield [*held, head]
            batch, held, count = batch.slice(head.num_rows), [], 0
        if batch.num_rows:
            held.append(batch)
            count += batch.num_rows
    if held:
        yield held


def _aligned(
    streams: Sequence[Iterator[pa.RecordBatch]], progress: RowProgress, rows: int
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Batches of as many rows of each stream, and the number of rows before them."""
    start = 0
    for held in zip(*(_regrouped(stream, BATCH_ROWS) for stream in streams), strict=True):
        batches = [
            one[0] if len(one) == 1 else pa.Table.from_batches(one).combine_chunks().to_batches()[0]
            for one in held
        ]
        yield start, batches
        start += batches[0].num_rows
        progress.at(start / max(1, rows), start)


def _named(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, list(names))


def _arrow(one: Columns) -> Iterator[pa.RecordBatch]:
    """Rows of a parquet file with the file's own types; without columns that it does not have."""
    with closing(open_table(one.source.path)) as table:
        assert isinstance(table, ParquetTable)
        names = [name for name in one.names if name in table.names]
        for batch in table.batches(BATCH_ROWS):
            yield batch.select(names)


def _lines(
    database: Database, one: Columns, runs: Sequence[Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """Each run of columns as a part of a csv's line, in bytes."""
    source = one.source
    if source.is_csv or source.has_only_numbers_and_texts:
        # null: merge --on found no row
        parts = [f"coalesce(v{n}, '{',' * (len(run) - 1)}')" for n, run in enumerate(runs)]
        lines = one.sql([_line(source, run) for run in runs])
        for batch in database.stream(f"SELECT {', '.join(parts) or '1'} FROM ({lines})"):
            columns = [column.cast(pa.binary()) for column in batch.columns if parts]
            yield pa.RecordBatch.from_arrays(columns or batch.columns, batch.schema.names)
        return
    names = [name for run in runs for name in run]
    batches = _arrow(one)
    if one.query is not None:
        columns = [f"c{source.names.index(name)}" for name in names]
        batches = _named(database.stream(one.sql(columns)), names)
    for batch in batches:
        parts = [_as_lines(batch, run) for run in runs]
        yield pa.RecordBatch.from_arrays(parts, [str(n) for n in range(len(runs))])


def _line(source: Source, names: Sequence[str]) -> str:
    """SQL for the line as Python's csv module writes it."""
    cells = []
    for name in names:
        text = source.text(name) if name in source.names else "''"
        place = source.types[source.names.index(name)] if name in source.names else ""
        if place == "VARCHAR":
            needs = " OR ".join(f"contains({text}, '{sign}')" for sign in _NEEDS_QUOTES)
            escaped = f"'\"' || replace({text}, '\"', '\"\"') || '\"'"
            text = f"CASE WHEN {needs} THEN {escaped} ELSE {text} END"
        cells.append(text)
    return f"concat_ws(',', {', '.join(cells)})" if len(cells) > 1 else cells[0]


def _as_lines(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    columns = [
        [cell(value) for value in batch.column(name).to_pylist()]
        if name in batch.schema.names
        else [""] * batch.num_rows
        for name in names
    ]
    lines = []
    for row in zip(*columns, strict=True):
        text = io.StringIO(newline="")
        csv.writer(text).writerow([*row, ""])  # a lone empty cell would be in quotes
        lines.append(text.getvalue()[:-3].encode("utf-8", "surrogateescape"))
    return pa.array(lines, pa.binary())


def _byte(found: re.Match[bytes]) -> bytes:
    """The byte that waits as a character of the private range from U+10FF80."""
    return bytes([0x80 + (found[1][0] - 0xBE) * 0x40 + found[2][0] - 0x80])


def _typed(database: Database, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a csv as columns of a schema, then place and text of a cell that does not fit."""
    values, bad, shown = [], [], []
    for place, one in enumerate(schema):
        values.append(f"{_value(source, one)} AS v{place}")
        if one.name not in source.names:
            continue
        cells = source.text(one.name)
        is_number = pa.types.is_integer(one.type) or pa.types.is_floating(one.type)
        test = f"({cells} <> '' AND {_value(source, one)} IS NULL)" if is_number else ""
        if is_text(one.type) and source.is_escaped:
            test = f"regexp_matches({cells}, '[\\x{{10FF80}}-\\x{{10FFFF}}]')"
        if test:
            bad.append(f"WHEN {test} THEN {place}")
            shown.append(f"WHEN {test} THEN {cells}")
    first = f"CASE {' '.join(bad)} END" if bad else "NULL"
    cell_of = f"CASE {' '.join(shown)} END" if bad else "NULL"
    query = f"SELECT {', '.join([*values, first, cell_of])} FROM {source.view}"
    return _named(database.stream(query), [*schema.names, _BAD, _SHOWN])


def _value(source: Source, one: pa.Field) -> str:
    """SQL for a column of a source as a type of Arrow; parquet's own type is cast by Arrow."""
    if one.name not in source.names:
        return "''" if is_text(one.type) else "NULL"
    if not source.is_csv:
        return f"c{source.names.index(one.name)}"
    text = source.text(one.name)
    number = f"TRY_CAST({text} AS DOUBLE)"
    if pa.types.is_integer(one.type):  # a cast to BIGINT alone would round 51.5
        is_whole = f"{number} = floor({number}) AND abs({number}) < 9223372036854775808"
        return f"CASE WHEN {is_whole} THEN TRY_CAST({text} AS BIGINT) END"
    if pa.types.is_floating(one.type):
        return number
    return text if is_text(one.type) else f"nullif({text}, '')"


def _common(one: pa.Field, two: pa.Field) -> pa.Field:
    """A field that holds a column of two tables. Raises ManifestError."""
    kinds = (one.type, two.type)
    if kinds[0] == kinds[1]:
        return one
    if all(map(is_text, kinds)):
        return pa.field(one.name, pa.large_string())
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        raise ManifestError(
            f"column {one.name!r} is {one.type} in one table and {two.type} in another"
        )
    is_whole = all(map(pa.types.is_integer, kinds))
    return pa.field(one.name, pa.int64() if is_whole else pa.float64())


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column as the schema has it; null in every row where the batch has none."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    array = batch.column(field.name)
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise ManifestError(
            f"column {field.name!r} is {array.type} and cannot be written as {field.type}: "
            f"{first_line(error)}"
        ) from None
