"""From manifests to a manifest, piece by piece: what nearly every verb is."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.arguments import whole
from trainer.data.manifest.manifest import MAX_WRONG_ROWS, ManifestError, WrongRow, check_suffix
from trainer.data.manifest.resumable_write import CsvFormat, Format, Job, ParquetFormat, identity
from trainer.data.manifest.table_io import Batch, ParquetTable, Table, column_type, open_table
from trainer.runlog.progress import RowProgress

READ_ROWS = 8192
LISTED = 20  # wrong rows that are shown

Result = tuple[Batch, Sequence[WrongRow]]


@dataclass(frozen=True)
class Options:
    """What every verb that writes a manifest can be told."""

    force: bool = False
    max_wrong_rows: int = MAX_WRONG_ROWS
    quiet: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> Options:
        return cls(args.force, args.max_wrong_rows, args.quiet)


def add_options(parser: argparse.ArgumentParser, max_wrong_rows: int = MAX_WRONG_ROWS) -> None:
    """The options of `Options`, for a verb's parser."""
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")
    parser.add_argument(
        "--max-wrong-rows",
        type=whole(),
        default=max_wrong_rows,
        metavar="N",
        help="stop above this many rows that had to be left out (%(default)s)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


@dataclass(frozen=True)
class Plan:
    """What becomes of the rows of `sources`.

    `ask` is called with each batch as it is read and may begin something slow; `give` gets the
    batch and what `ask` gave, in order, and returns the rows to write. About `ahead` rows are asked
    for before the first of them must be there. `names` are the columns of the result.
    """

    verb: str
    sources: Sequence[Path]
    arguments: Mapping[str, Any]  # what else decides the result, plain data
    required: Sequence[str] = ()
    names: Callable[[tuple[str, ...]], Sequence[str]] = tuple
    ask: Callable[[Batch], Any] = lambda batch: None
    give: Callable[[Batch, Any], Result] = lambda batch, answer: (batch, ())
    prepare: Callable[[Job, RowProgress], None] = lambda job, progress: None
    read_rows: int = 0  # at once; 0: READ_ROWS
    ahead: int = 0
    layout: Callable[[Any], Format] | None = (
        None  # from an Arrow schema; default by the name of `out`
    )
    more_types: Callable[[], Mapping[str, Any]] = dict  # of columns that no source has, for parquet


@dataclass(frozen=True)
class Done:
    """What came of it."""

    out: Path
    rows: int
    wrong: list[WrongRow]
    resumed: bool
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """1 when rows had to be left out."""
        return 1 if self.wrong else 0


def run(plan: Plan, out: Path, options: Options) -> Done:
    """Make `out`; goes on where an interrupted run of the same plan stopped.

    Raises ManifestError for an unusable source, a file that is there already, and more wrong rows
    than allowed (what is done stays: the same command with a higher limit goes on).
    """
    if plan.layout is None:
        check_suffix(out)
    for source in plan.sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ManifestError(f"{out} is read and cannot be written at the same time")
    key = {
        "verb": plan.verb,
        "sources": [identity(source) for source in plan.sources],
        "arguments": dict(plan.arguments),
        "out": out.suffix,
    }
    progress = RowProgress(f"{plan.verb} {out.name}", options.quiet)
    tables = [open_table(source, plan.required) for source in plan.sources]
    job = Job(out, key, force=options.force)
    try:
        with job:
            if job.finished:
                job.clear()
                return Done(out, job.rows, job.wrong, True, job.state)
            job.begin(_layout(plan, tables, out, job, progress))
            resumed = job.resumed
            if resumed and not options.quiet:
                print(
                    f"{plan.verb} {out.name}: {job.rows:,} rows are done already", file=sys.stderr
                )
            plan.prepare(job, progress)
            _pump(plan, tables, job, options, progress)
            job.flush()
            check_limit(out, job.wrong, options)
            job.finish()
            return Done(out, job.rows, job.wrong, resumed, job.state)
    except OSError as error:  # a full disk, a folder that may not be written
        raise ManifestError(
            f"{error.filename or job.folder}: {error.strerror or error}",
            hint="what is done is kept: the same command goes on where this one stopped",
        ) from None
    finally:
        progress.clear()
        for table in tables:
            table.close()


def _layout(plan: Plan, tables: list[Table], out: Path, job: Job, progress: RowProgress) -> Format:
    every = dict.fromkeys(name for table in tables for name in table.names)
    names = list(plan.names(tuple(every)))
    if plan.layout is None and out.suffix == ".csv":
        return CsvFormat(names)
    import pyarrow as pa

    from trainer.data.manifest import arrow

    fields: dict[str, Any] = {}
    for number, table in enumerate(tables):
        if isinstance(table, ParquetTable):
            found = {field.name: field for field in table.schema}
        else:
            types = job.state.setdefault("types", {})
            if str(number) not in types:
                types[str(number)] = arrow.guess_types(
                    table, lambda share: progress.at(share / 2, 0)
                )
                job.save_state()
            found = {
                field.name: field for field in arrow.schema_of(table.names, types[str(number)])
            }
        for name, one in found.items():
            before = fields.setdefault(name, one)
            if before.type != one.type:
                fields[name] = _common(name, before, one)
    for name, kind in plan.more_types().items():
        fields[name] = pa.field(name, kind)
    return (plan.layout or ParquetFormat)(
        pa.schema(
            [fields.get(name) or pa.field(name, column_type(name) or pa.string()) for name in names]
        )
    )


def _common(name: str, one: Any, two: Any) -> Any:
    import pyarrow as pa

    number = [
        pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one.type, two.type)
    ]
    text = [
        pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in (one.type, two.type)
    ]
    if all(text):
        return pa.field(name, pa.large_string())
    if not all(number):
        raise ManifestError(f"column {name!r} is {one.type} in one table and {two.type} in another")
    whole = all(pa.types.is_integer(kind) for kind in (one.type, two.type))
    return pa.field(name, pa.int64() if whole else pa.float64())


def _pump(
    plan: Plan, tables: list[Table], job: Job, options: Options, progress: RowProgress
) -> None:
    at = job.position or {"source": 0, "at": None}
    waiting: deque[tuple[Batch, Any, list[WrongRow], dict[str, Any], float, int]] = deque()
    held = 0

    def give_one() -> None:
        nonlocal held
        batch, answer, wrong, position, share, through = waiting.popleft()
        held -= len(batch)
        rows, refused = plan.give(batch, answer)
        job.add(rows, position, [*wrong, *refused])
        if job.left_out > options.max_wrong_rows:
            check_limit(job.out, job.wrong, options)
        progress.at(share, through)

    through = 0
    for number in range(at["source"], len(tables)):
        table = tables[number]
        if number == at["source"] and at["at"] is not None:
            table.seek(at["at"])
        while (batch := table.read(plan.read_rows or READ_ROWS)) is not None or table.wrong:
            wrong, table.wrong[:] = _named(table, len(tables)), []
            if batch is None:
                batch = _nothing(table)
            position = {"source": number, "at": table.position}
            share = (number + table.share) / len(tables)
            through += len(batch)
            waiting.append((batch, plan.ask(batch), wrong, position, share, through))
            held += len(batch)
            while waiting and held > plan.ahead:
                give_one()
    while waiting:
        give_one()


def _named(table: Table, tables: int) -> list[WrongRow]:
    if tables == 1:
        return list(table.wrong)
    return [WrongRow(row.line, f"{table.source.name}: {row.reason}") for row in table.wrong]


def _nothing(table: Table) -> Batch:
    from trainer.data.manifest.table_io import CsvBatch

    return CsvBatch(table.names, [], [])


def check_limit(where: Path, wrong: Sequence[WrongRow], options: Options) -> None:
    """Raise ManifestError with the first wrong rows when there are more than allowed."""
    if len(wrong) > options.max_wrong_rows:
        raise ManifestError(
            f"{where}: {len(wrong):,} rows had to be left out, {options.max_wrong_rows:,} are allowed"
            + listing(wrong),
            hint="--max-wrong-rows allows more; the same command goes on where this one stopped",
        )


def listing(wrong: Sequence[WrongRow], count: int = LISTED) -> str:
    """The first wrong rows, a line each."""
    shown = "".join(f"\n  line {row}" for row in wrong[:count])
    return shown + (f"\n  and {len(wrong) - count:,} more" if len(wrong) > count else "")
