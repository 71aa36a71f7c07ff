"""From a manifest to a manifest, piece by piece: verbs that take hours and go on after a kill."""

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
from trainer.data.manifest.table_io import (
    Batch,
    CsvBatch,
    ParquetTable,
    Position,
    Table,
    column_type,
    open_table,
)
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
    """What becomes of the rows of `source`.

    `ask` is called with each batch as it is read and may begin something slow; `give` gets the
    batch and what `ask` gave, in order, and returns the rows to write. About `ahead` rows are asked
    for before the first of them must be there. `names` are the columns of the result.
    """

    verb: str
    source: Path
    arguments: Mapping[str, Any]  # what else decides the result, plain data
    required: Sequence[str] = ()
    names: Callable[[tuple[str, ...]], Sequence[str]] = tuple
    ask: Callable[[Batch], Any] = lambda batch: None
    give: Callable[[Batch, Any], Result] = lambda batch, answer: (batch, ())
    prepare: Callable[[Job], None] = lambda job: None
    read_rows: int = 0  # at once; 0: READ_ROWS
    ahead: int = 0
    layout: Callable[[Any], Format] | None = (
        None  # from an Arrow schema; default by the name of `out`
    )


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
    """Make `out`; continues where an interrupted run of the same plan stopped.

    Raises ManifestError for an unusable source, an existing file, and more wrong rows
    than allowed (what is done stays: the same command with a higher limit continues).
    """
    if plan.layout is None:
        check_suffix(out)
    if out.exists() and plan.source.exists() and out.samefile(plan.source):
        raise ManifestError(f"{out} is read and cannot be written at the same time")
    key = {
        "verb": plan.verb,
        "source": identity(plan.source),
        "arguments": dict(plan.arguments),
        "out": out.suffix,
    }
    progress = RowProgress(f"{plan.verb} {out.name}", options.quiet)
    table = open_table(plan.source, plan.required)
    job = Job(out, key, force=options.force)
    try:
        with job:
            if job.finished:
                job.clear()
                return Done(out, job.rows, job.wrong, True, job.state)
            job.begin(_layout(plan, table, out, job, progress))
            resumed = job.resumed
            if resumed and not options.quiet:
                print(
                    f"{plan.verb} {out.name}: {job.rows:,} rows are done already", file=sys.stderr
                )
            plan.prepare(job)
            _pump(plan, table, job, options, progress)
            job.flush()
            check_limit(out, job.wrong, options)
            job.finish()
            return Done(out, job.rows, job.wrong, resumed, job.state)
    except OSError as error:  # a full disk, a folder that may not be written
        raise ManifestError(
            f"{error.filename or job.folder}: {error.strerror or error}",
            hint="finished work is kept; run the same command again to continue",
        ) from None
    finally:
        progress.clear()
        table.close()


def _layout(plan: Plan, table: Table, out: Path, job: Job, progress: RowProgress) -> Format:
    names = list(plan.names(table.names))
    if plan.layout is None and out.suffix == ".csv":
        return CsvFormat(names)
    import pyarrow as pa

    from trainer.data.manifest import arrow

    if isinstance(table, ParquetTable):
        found = table.schema
    else:
        if "types" not in job.state:
            job.state["types"] = arrow.guess_types(table, lambda share: progress.at(share / 2, 0))
            job.save_state()
        found = arrow.schema_of(table.names, job.state["types"])
    fields = {one.name: one for one in found}
    return (plan.layout or ParquetFormat)(
        pa.schema(
            [fields.get(name) or pa.field(name, column_type(name) or pa.string()) for name in names]
        )
    )


def _pump(plan: Plan, table: Table, job: Job, options: Options, progress: RowProgress) -> None:
    waiting: deque[tuple[Batch, Any, list[WrongRow], Position, float, int]] = deque()
    held = through = 0

    def give_one() -> None:
        nonlocal held
        batch, answer, wrong, position, share, through = waiting.popleft()
        held -= len(batch)
        rows, refused = plan.give(batch, answer)
        job.add(rows, position, [*wrong, *refused])
        if job.left_out > options.max_wrong_rows:
            check_limit(job.out, job.wrong, options)
        progress.at(share, through)

    if job.position is not None:
        table.seek(job.position)
    while (batch := table.read(plan.read_rows or READ_ROWS)) is not None or table.wrong:
        wrong, table.wrong[:] = list(table.wrong), []
        if batch is None:
            batch = CsvBatch(table.names, [], [])
        through += len(batch)
        waiting.append((batch, plan.ask(batch), wrong, table.position, table.share, through))
        held += len(batch)
        while waiting and held > plan.ahead:
            give_one()
    while waiting:
        give_one()


_GO_ON = "--max-wrong-rows allows more; run the same command again to continue"


def check_limit(
    where: Path, wrong: Sequence[WrongRow], options: Options, hint: str = _GO_ON
) -> None:
    """Raise ManifestError with the first wrong rows when there are more than allowed."""
    if len(wrong) > options.max_wrong_rows:
        raise ManifestError(
            f"{where}: {len(wrong):,} rows had to be left out, "
            f"{options.max_wrong_rows:,} are allowed" + listing(wrong),
            hint=hint,
        )


def listing(wrong: Sequence[WrongRow], count: int = LISTED) -> str:
    """The first wrong rows, a line each."""
    shown = "".join(f"\n  line {row}" for row in wrong[:count])
    return shown + (f"\n  and {len(wrong) - count:,} more" if len(wrong) > count else "")
