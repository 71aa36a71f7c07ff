"""A manifest written from the rows of others in one go: it appears whole or not at all."""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.manifest.arrow import common_field, to_schema
from trainer.data.manifest.manifest import ManifestError, WrongRow, check_suffix
from trainer.data.manifest.pipeline import Options, check_limit
from trainer.data.manifest.resumable_write import GROUP_ROWS, Job, regroup
from trainer.data.manifest.sql import BATCH_ROWS, Database, Source, unescaped
from trainer.data.manifest.table_io import ArrowBatch, ParquetTable, cell, column_type, open_table
from trainer.runlog.progress import RowProgress

_ESCAPED_BYTE = re.compile(rb"\xf4\x8f([\xbe\xbf])([\x80-\xbf])")
_NEEDS_QUOTES = ",", '"', "\n", "\r"
_HINT = "nothing was written"


@dataclass(frozen=True)
class Beside:
    """Columns of another table for each row in order: what `Rows` gets on its right."""

    source: Source
    names: Sequence[str]
    query: Callable[[str], str]  # from the SQL of the columns to rows in the order of the first


@dataclass(frozen=True)
class Rows:
    """Rows of a source in their order; `keep` has a place for each."""

    source: Source
    keep: NDArray[np.bool_] | None = None
    beside: Sequence[Beside] = ()


@dataclass
class Rewrite:
    """One manifest in the making."""

    out: Path
    options: Options
    database: Database
    progress: RowProgress
    whole: Path  # becomes `out`
    wrong: list[WrongRow] = field(default_factory=list)
    rows: int = 0

    @property
    def exit_code(self) -> int:
        """1 when rows had to be left out."""
        return 1 if self.wrong else 0

    def add(self, path: Path, required: Sequence[str] = (), named: bool = False) -> Source:
        """A source; its wrong rows count, with the name of the file where there are several."""
        source = self.database.add(path, required)
        prefix = f"{path.name}: " if named else ""
        self.leave_out([WrongRow(row.line, prefix + row.reason) for row in source.wrong])
        return source

    def leave_out(self, wrong: Sequence[WrongRow]) -> None:
        """Name rows that are not written. Raises ManifestError above the limit."""
        self.wrong += wrong
        check_limit(self.out, self.wrong, self.options, hint="--max-wrong-rows allows more")

    def columns(self, source: Source, names: Sequence[str]) -> list[str]:
        """SQL for columns as values of their types."""
        if not source.is_csv:
            return [f"c{source.names.index(name)}" for name in names]
        return [_value(source, one) for one in _fields(self.database, source, names)]

    def write(self, parts: Sequence[Rows]) -> None:
        """Write all parts one behind the other."""
        names = dict.fromkeys(name for part in parts for name in _names(part))
        if self.out.suffix == ".csv":
            self._write_csv(parts, list(names))
        else:
            self._write_parquet(parts, self._schema(parts, list(names)))

    def _write_csv(self, parts: Sequence[Rows], names: list[str]) -> None:
        header = io.StringIO()
        csv.writer(header).writerow(names)
        with self.whole.open("wb") as file:
            file.write(header.getvalue().encode("utf-8", "surrogateescape"))
            for part in parts:
                own = [name for name in names if not any(name in b.names for b in part.beside)]
                streams = [_lines(self.database, part.source, own)]
                streams += [_lines_beside(self.database, one) for one in part.beside]
                is_escaped = any(s.is_escaped for s in _sources(part))
                for arrays in _aligned(streams, self.progress, part.source.rows):
                    lines = arrays[0].column(0)
                    for other in arrays[1:]:
                        lines = pc.binary_join_element_wise(lines, other.column(0), b",")
                    lines = _kept(lines, part.keep, arrays.start)
                    if not len(lines):
                        continue
                    text = b"\r\n".join(lines.to_pylist()) + b"\r\n"
                    file.write(_ESCAPED_BYTE.sub(_byte, text) if is_escaped else text)
                    self.rows += len(lines)

    def _write_parquet(self, parts: Sequence[Rows], schema: pa.Schema) -> None:
        with pq.ParquetWriter(self.whole, schema) as writer:
            batches = (batch for part in parts for batch in self._batches(part, schema))
            for table in regroup(batches, schema, GROUP_ROWS):
                writer.write_table(table, row_group_size=GROUP_ROWS)

    def _batches(self, part: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        beside = [name for one in part.beside for name in one.names]
        own = pa.schema([one for one in schema if one.name not in beside])
        if part.source.is_csv:
            streams = [_typed(self.database, part.source, own)]
        else:
            streams = [_parquet_batches(part.source)]
        for one in part.beside:
            fields = pa.schema([schema.field(name) for name in one.names])
            columns = ", ".join(
                f"{_value(one.source, column)} AS v{number}" for number, column in enumerate(fields)
            )
            streams.append(self.database.stream(one.query(columns)))
        for batches in _aligned(streams, self.progress, part.source.rows):
            first = _kept(batches[0], part.keep, batches.start)
            if part.source.is_csv:
                first = self._refuse(part, first, own, batches.start)
            arrays = to_schema(ArrowBatch(first.select(_present(first, own)), ()), own)[0].columns
            for one, batch in zip(part.beside, batches[1:], strict=True):
                fields = pa.schema([schema.field(name) for name in one.names])
                batch = pa.RecordBatch.from_arrays(batch.columns, list(one.names))
                if part.source.is_csv:
                    batch = batch.take(first.column("row"))
                arrays += to_schema(ArrowBatch(batch, ()), fields)[0].columns
            if first.num_rows:
                by_name = dict(zip([*own.names, *beside], arrays, strict=True))
                self.rows += first.num_rows
                yield pa.RecordBatch.from_arrays([by_name[n] for n in schema.names], schema=schema)

    def _refuse(
        self, part: Rows, batch: pa.RecordBatch, schema: pa.Schema, start: int
    ) -> pa.RecordBatch:
        """Without the rows of a csv with a cell that does not fit into its column."""
        bad = batch.column("bad")
        if bad.null_count == len(bad):
            return batch
        wrong = batch.filter(pc.is_valid(bad))
        rows = [start + row for row in wrong.column("row").to_pylist()]
        lines = part.source.lines(rows)
        found = []
        for row, place, shown in zip(
            rows, wrong.column("bad").to_pylist(), wrong.column("shown").to_pylist(), strict=True
        ):
            kind = schema.field(place).type
            what = "is not an integer" if pa.types.is_integer(kind) else "is not a number"
            what = "is not UTF-8" if _is_string(kind) else what
            reason = f"{schema.field(place).name} {repr(unescaped(shown))[:60]} {what}"
            found.append(WrongRow(lines[row], reason))
        self.leave_out(found)
        return batch.filter(pc.is_null(bad))

    def _schema(self, parts: Sequence[Rows], names: list[str]) -> pa.Schema:
        fields: dict[str, pa.Field] = {}
        for part in parts:
            for one in _fields(self.database, part.source, part.source.names):
                before = fields.setdefault(one.name, one)
                if before.type != one.type:
                    fields[one.name] = common_field(before, one)
            for other in part.beside:
                for one in _fields(self.database, other.source, other.names):
                    self._check_cells(other.source, one)
                    fields[one.name] = one
        return pa.schema([fields[name] for name in names])

    def _check_cells(self, source: Source, one: pa.Field) -> None:
        """Raise ManifestError for a cell beside that does not fit: the row is another table's."""
        if not source.is_csv or _is_string(one.type):
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
def rewriting(verb: str, sources: Sequence[Path], out: Path, options: Options) -> Iterator[Rewrite]:
    """Make `out` from `sources`; it appears whole when the block ends well.

    Raises ManifestError for an unusable source, an existing file, more wrong rows than
    allowed, and a disk that is full.
    """
    check_suffix(out)
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ManifestError(f"{out} is read and cannot be written at the same time")
        open_table(source).close()
    with (
        RowProgress(f"{verb} {out.name}", options.quiet) as progress,
        # the process's number: nothing that an earlier one left is used
        Job(out, {"verb": verb, "process": os.getpid()}, force=options.force) as job,
    ):
        job.restart()
        try:
            with Database(job.folder) as database:
                yield Rewrite(out, options, database, progress, job.whole)
            job.publish()
        except OSError as error:
            where = error.filename or job.folder
            raise ManifestError(f"{where}: {error.strerror or error}", hint=_HINT) from None
        finally:
            shutil.rmtree(job.folder, ignore_errors=True)


class _Batches(list[pa.RecordBatch]):
    """Batches of as many rows each, the first of which is row `start`."""

    start = 0


def _aligned(
    streams: Sequence[Iterator[pa.RecordBatch]], progress: RowProgress, rows: int
) -> Iterator[_Batches]:
    """Streams of as many rows as each other, cut where the first is cut."""
    feeds = [_Feed(stream) for stream in streams[1:]]
    start = 0
    for batch in streams[0]:
        found = _Batches([batch, *(feed.take(batch.num_rows) for feed in feeds)])
        found.start = start
        yield found
        start += batch.num_rows
        progress.at(start / max(1, rows), start)


class _Feed:
    def __init__(self, stream: Iterator[pa.RecordBatch]) -> None:
        self._stream = stream
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch:
        parts = []
        while rows:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._stream)
            parts.append(self._rest.slice(0, rows))
            self._rest = self._rest.slice(rows)
            rows -= parts[-1].num_rows
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _kept(data: Any, keep: NDArray[np.bool_] | None, start: int) -> Any:
    return data if keep is None else data.filter(pa.array(keep[start : start + len(data)]))


def _names(part: Rows) -> list[str]:
    return [*part.source.names, *(name for one in part.beside for name in one.names)]


def _sources(part: Rows) -> list[Source]:
    return [part.source, *(one.source for one in part.beside)]


def _present(batch: pa.RecordBatch, schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name in batch.schema.names]


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _lines(database: Database, source: Source, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Each row as a line of csv without its end."""
    if source.is_csv or source.has_only_numbers_and_texts:
        query = f"SELECT {_line(source, names)} FROM {source.view}"
        yield from map(_as_bytes, database.stream(query))
    else:
        for batch in _parquet_batches(source):
            yield _as_lines(batch, names)


def _lines_beside(database: Database, one: Beside) -> Iterator[pa.RecordBatch]:
    if one.source.is_csv or one.source.has_only_numbers_and_texts:
        empty = "," * (len(one.names) - 1)
        line = f"{_line(one.source, one.names)} AS v0"
        query = f"SELECT coalesce(v0, '{empty}') FROM ({one.query(line)})"
        yield from map(_as_bytes, database.stream(query))
    else:
        columns = ", ".join(
            f"c{one.source.names.index(n)} AS v{i}" for i, n in enumerate(one.names)
        )
        for batch in database.stream(one.query(columns)):
            yield _as_lines(pa.RecordBatch.from_arrays(batch.columns, list(one.names)), one.names)


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
    if len(cells) == 1:
        return f"coalesce(nullif({cells[0]}, ''), '\"\"')"
    return f"concat_ws(',', {', '.join(cells)})"


def _as_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(0).cast(pa.binary())], ["line"])


def _as_lines(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    columns = [
        [cell(value) for value in batch.column(name).to_pylist()]
        if name in batch.schema.names
        else [""] * batch.num_rows
        for name in names
    ]
    lines = []
    for row in zip(*columns, strict=True):
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\r\n").writerow(row)
        lines.append(text.getvalue()[:-2].encode("utf-8", "surrogateescape"))
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.binary())], ["line"])


def _byte(found: re.Match[bytes]) -> bytes:
    """The byte that waits as a character of the private range from U+10FF80."""
    return bytes([0x80 + (found[1][0] - 0xBE) * 0x40 + found[2][0] - 0x80])


def _parquet_batches(source: Source) -> Iterator[pa.RecordBatch]:
    with closing(open_table(source.path)) as table:
        while (batch := table.read(BATCH_ROWS)) is not None:
            assert isinstance(batch, ArrowBatch)
            yield batch.data


def _typed(database: Database, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a csv as columns of a schema, then place and text of a cell that does not fit (`bad`,
    `shown`) and the row's number in the batch (`row`)."""
    values, bad, shown = [], [], []
    for place, one in enumerate(schema):
        values.append(f"{_value(source, one)} AS v{place}")
        if one.name not in source.names:
            continue
        cells = source.text(one.name)
        is_number = pa.types.is_integer(one.type) or pa.types.is_floating(one.type)
        test = f"({cells} <> '' AND {_value(source, one)} IS NULL)" if is_number else ""
        if _is_string(one.type) and source.is_escaped:
            test = f"regexp_matches({cells}, '[\\x{{10FF80}}-\\x{{10FFFF}}]')"
        if test:
            bad.append(f"WHEN {test} THEN {place}")
            shown.append(f"WHEN {test} THEN {cells}")
    first = f"CASE {' '.join(bad)} END" if bad else "NULL"
    cell_of = f"CASE {' '.join(shown)} END" if bad else "NULL"
    query = f"SELECT {', '.join(values)}, {first}, {cell_of} FROM {source.view}"
    for batch in database.stream(query):
        rows = pa.array(np.arange(batch.num_rows))
        names = [*schema.names, "bad", "shown", "row"]
        yield pa.RecordBatch.from_arrays([*batch.columns, rows], names)


def _value(source: Source, one: pa.Field) -> str:
    """SQL for a column of a source as a type of Arrow; parquet's own type is cast by Arrow."""
    if one.name not in source.names:
        return "''" if _is_string(one.type) else "NULL"
    if not source.is_csv:
        return f"c{source.names.index(one.name)}"
    text = source.text(one.name)
    number = f"TRY_CAST({text} AS DOUBLE)"
    if pa.types.is_integer(one.type):  # a cast to BIGINT alone would round 51.5
        is_whole = f"{number} = floor({number}) AND abs({number}) < 9223372036854775808"
        return f"CASE WHEN {is_whole} THEN TRY_CAST({text} AS BIGINT) END"
    if pa.types.is_floating(one.type):
        return number
    return text if _is_string(one.type) else f"nullif({text}, '')"


def _fields(database: Database, source: Source, names: Sequence[str]) -> list[pa.Field]:
    """Arrow's fields of columns: as the parquet file has them, or guessed from a csv's cells."""
    if not source.is_csv:
        with closing(open_table(source.path)) as table:
            assert isinstance(table, ParquetTable)
            return [table.schema.field(name) for name in names]
    kinds: Mapping[str, Any] = database.guess_types(source, names)
    return [pa.field(name, column_type(name) or kinds[name]) for name in names]
