"""A manifest written from the rows of others: it appears whole or not at all."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.manifest import csv_lines
from trainer.data.manifest.arrow_types import cast, common, fields_of, misfit, misfit_reason, value
from trainer.data.manifest.database import BATCH_ROWS, Database
from trainer.data.manifest.left_out import RESUME, check_limit, report
from trainer.data.manifest.manifest import ManifestError, WrongRow, check_suffix
from trainer.data.manifest.places import Move, folder_of
from trainer.data.manifest.row_check import is_utf8
from trainer.data.manifest.sql import Source, escaped, is_number, unescaped, unescaped_bytes
from trainer.data.manifest.table_io import ParquetTable, first_line, open_table
from trainer.data.manifest.work_folder import WorkFolder
from trainer.runlog.progress import RowProgress

_GROUP_ROWS = 65_536  # of a parquet file
_MISFIT = "\0misfit"  # a column beside those of the file


@dataclass(frozen=True)
class Columns:
    """Columns of a source, by default empty: for its own rows, or for those of another view."""

    source: Source
    names: Sequence[str]
    view: str


@dataclass(frozen=True)
class Rows:
    """Rows of a source in their order; `keep` has a place for each.

    Columns of `beside`, which have as many rows, replace its own of the same names; others follow.
    """

    source: Source
    keep: NDArray[np.bool_] | None = None
    beside: Sequence[Columns] = ()

    @property
    def names(self) -> list[str]:
        return [*dict.fromkeys([*self.source.names, *(n for b in self.beside for n in b.names)])]

    def own(self, names: Sequence[str]) -> Columns:
        """Those of the columns that are not replaced; one at least, to count the rows."""
        beside = {name for one in self.beside for name in one.names}
        own = [name for name in names if name not in beside]
        return Columns(self.source, own or self.source.names[:1], self.source.view)


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
    is_moved: bool = False  # whether paths were changed for the folder of `out`
    _moves: dict[Path, Move] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.work.out

    def report(self, text: str) -> int:
        """Print what was made and what was left out; returns the exit code, 1 if rows were."""
        print(f"{self.out}: {text}")
        return self.end()

    def document(self, command: str) -> dict[str, Any]:
        """What was made and what was left out, for --json."""
        left_out = [{"line": row.line, "reason": row.reason} for row in self.wrong]
        made = {"out": str(self.out), "rows": self.rows, "left_out": left_out}
        return {"schema": 1, "command": command, **made}

    def end(self) -> int:
        """Print notes and what was left out; returns the exit code, 1 if rows were."""
        for note in self.notes:
            print(note, file=sys.stderr)
        if self.is_moved:
            print(
                f"relative paths now start in the folder of {self.out}; "
                "--root FOLDER keeps them as they are",
                file=sys.stderr,
            )
        report(self.wrong)
        return 1 if self.wrong else 0

    def add(self, path: Path, required: Sequence[str] = (), named: bool = False) -> Source:
        """A source; its wrong rows count, with the name of the file where there are several."""
        others = getattr(self.args, "columns", None)
        source = self.database.add(path, required, self.args.root, others)
        prefix = f"{path.name}: " if named else ""
        self.is_one_file &= not named
        self._leave_out([WrongRow(row.line, prefix + row.reason) for row in source.wrong])
        return source

    def leave_out(self, source: Source, reasons: Mapping[int, str]) -> None:
        """Do not write these rows of a source. Raises ManifestError above the limit."""
        lines = source.lines(list(reasons))
        self._leave_out([WrongRow(lines[row], reason) for row, reason in reasons.items()])

    def _leave_out(self, wrong: Sequence[WrongRow]) -> None:
        self.wrong += wrong
        if self.is_one_file:
            self.wrong.sort(key=lambda row: row.line)
        check_limit(self.out, self.wrong, self.args.max_wrong_rows, self.hint)

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
        with self.work.whole.open("wb") as file:
            file.write(csv_lines.header(names))
            for part in parts:
                tables = [part.own(names), *part.beside]
                is_escaped = any(one.source.is_escaped for one in tables)
                feeds = [_texts(self.database, one) for one in tables]
                for _, keep, batch in self._aligned(part, feeds):
                    batch = batch if keep.all() else batch.filter(pa.array(keep))
                    if not batch.num_rows:
                        continue
                    batch = self._in_place(part, batch, is_escaped)
                    lines = csv_lines.lines(batch, names)
                    file.write(unescaped_bytes(lines) if is_escaped else lines)
                    self.rows += batch.num_rows

    def tables(self, parts: Sequence[Rows], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
        """All rows as tables of `rows` rows, the last one shorter; at least one table."""
        batches = (batch for part in parts for batch in self._batches(part, schema))
        for held in _regrouped(batches, rows):
            yield pa.Table.from_batches(held, schema).combine_chunks()
        if not self.rows:
            yield pa.Table.from_batches([], schema)

    def _batches(self, part: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        own = part.own(schema.names)
        fields = [schema.field(name) for name in own.names]
        columns = {_MISFIT: misfit(own.source, fields), **_values(own, schema)}
        feeds = [self.database.columns(one.view, _values(one, schema)) for one in part.beside]
        feeds.insert(
            0, self.database.columns(own.view, columns) if own.source.is_csv else _arrow(own)
        )
        for start, keep, batch in self._aligned(part, feeds):
            if own.source.is_csv:
                misfits = batch.column(_MISFIT)
                is_bad = misfits.is_valid().to_numpy(zero_copy_only=False)
                bad = np.flatnonzero(is_bad & keep).tolist()
                reasons = {start + n: misfit_reason(fields, misfits[n].as_py()) for n in bad}
                self.leave_out(own.source, reasons)
                keep = keep & ~is_bad
            batch = batch if keep.all() else batch.filter(pa.array(keep))
            batch = self._in_place(part, batch)
            self.rows += batch.num_rows
            arrays = [cast(batch, one) for one in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _in_place(
        self, part: Rows, batch: pa.RecordBatch, is_escaped: bool = False
    ) -> pa.RecordBatch:
        """The batch with relative paths that start in the folder of `out`: they name the same
        files as in the source. With --root they start there, in both."""
        folder, to = folder_of(part.source.path), self.out.parent.resolve()
        names, beside = batch.schema.names, [name for one in part.beside for name in one.names]
        if self.args.root or folder == to or "path" not in names or "path" in beside:
            return batch
        before = batch.column("path")
        if pa.types.is_binary(before.type):
            paths = [os.fsdecode(path or b"") for path in before.to_pylist()]
        else:
            paths = [path or "" for path in before.to_pylist()]
        move = self._moves.setdefault(folder, Move(folder, to))
        moved = [move(unescaped(path) if is_escaped else path) for path in paths]
        self.is_moved |= moved != paths
        column: pa.Array
        if self.out.suffix == ".csv":  # any bytes
            texts = map(escaped, moved) if is_escaped else moved
            column = pa.array([os.fsencode(text) for text in texts], pa.binary())
        elif wrong := next((path for path in moved if not is_utf8(path)), None):
            raise ManifestError(
                f"{self.out}: path {wrong!r} is not UTF-8, as texts of parquet are",
                hint="write a csv, or into the folder of the source",
            )
        else:
            column = pa.array(moved, before.type)
        return batch.set_column(names.index("path"), "path", column)

    def _aligned(
        self, part: Rows, feeds: Sequence[Iterator[pa.RecordBatch]]
    ) -> Iterator[tuple[int, NDArray[np.bool_], pa.RecordBatch]]:
        """Rows before a batch, which of its own to keep, and the columns of all feeds."""
        start = 0
        for held in zip(*(_regrouped(feed, BATCH_ROWS) for feed in feeds), strict=True):
            tables = [pa.Table.from_batches(batches).combine_chunks() for batches in held]
            columns = {
                name: table[name].chunk(0) for table in tables for name in table.schema.names
            }
            batch = pa.RecordBatch.from_pydict(columns)
            end = start + batch.num_rows
            keep = np.ones(batch.num_rows, bool) if part.keep is None else part.keep[start:end]
            yield start, keep, batch
            start = end
            self.progress.at(start / max(1, part.source.rows), start)

    def schema(self, parts: Sequence[Rows], names: Sequence[str]) -> pa.Schema:
        """Types that hold the columns of all parts. Raises ManifestError where none does."""
        fields: dict[str, pa.Field] = {}
        for part in parts:
            for one in fields_of(self.database, part.source, part.source.names):
                fields[one.name] = common(fields.get(one.name, one), one)
            for other in part.beside:
                for one in fields_of(self.database, other.source, other.names):
                    fields.setdefault(one.name, one)
        return pa.schema([fields[name] for name in names])


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
        except pa.ArrowException as error:  # a column of a kind that Arrow cannot choose rows of
            raise ManifestError(f"{out}: {first_line(error)}", hint=failed) from None
        finally:
            if arguments is None:
                shutil.rmtree(work.folder, ignore_errors=True)


def _arrow(columns: Columns) -> Iterator[pa.RecordBatch]:
    """Rows of a parquet file with the file's own types; without columns that it does not have."""
    with closing(open_table(columns.source.path, others=columns.source.others)) as table:
        assert isinstance(table, ParquetTable)
        names = [name for name in columns.names if name in table.names]
        for batch in table.batches(BATCH_ROWS):
            yield batch.select(names)


def _values(columns: Columns, schema: pa.Schema) -> dict[str, str]:
    """SQL for columns as the types of a schema."""
    return {name: value(columns.source, schema.field(name)) for name in columns.names}


def _texts(database: Database, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Columns as the cells of a csv, without quotes."""
    source, names = columns.source, columns.names
    if all(kind == "VARCHAR" or is_number(kind) for kind in source.types):
        cells = {name: source.text(name) if name in source.names else "''" for name in names}
        yield from database.columns(columns.view, cells)
        return
    if columns.view == source.view:
        batches = _arrow(columns)
    else:
        batches = database.columns(columns.view, {name: source.column(name) for name in names})
    yield from map(csv_lines.texts, batches)


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
