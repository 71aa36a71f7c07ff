"""`merge`, `difference`, `intersect`, `dedupe`: manifests as sets of rows; order stays the first one's.

python -m trainer.data merge pexels.csv openvid.csv all.csv
python -m trainer.data merge manifest.csv scores.csv scored.csv --on path   # columns side by side
python -m trainer.data difference all.csv seen.csv fresh.csv
python -m trainer.data dedupe all.csv unique.csv --on text
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.pipeline import Done, Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.resumable_write import Job
from trainer.data.manifest.table_io import Batch, open_table
from trainer.data.tools.keys import Buckets, also_in, first_of_each
from trainer.data.tools.left_out import tell_left_out
from trainer.runlog.progress import RowProgress

WITHOUT_OTHER = ("dedupe",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verb = parser.prog.split()[-1]
    if verb == "merge":
        parser.add_argument("sources", type=Path, nargs="+", help="manifests, in order")
    else:
        parser.add_argument("source", type=Path, help="manifest whose rows are chosen")
        if verb not in WITHOUT_OTHER:
            parser.add_argument("other", type=Path, help="manifest to compare with")
    parser.add_argument("out", type=Path, help="manifest to write")
    if verb == "merge":
        parser.add_argument("--fill", action="store_true", help="columns that one lacks stay empty")
        parser.add_argument(
            "--on",
            metavar="COLUMN",
            help="give the rows of the first the columns that only the others have, by this one",
        )
    else:
        parser.add_argument(
            "--on",
            default="path",
            metavar="COLUMN,…",
            help="columns that make two rows the same (%(default)s)",
        )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb == "merge":
        done = _join(args) if args.on else _append(args)
        print(f"{done.out}: {done.rows:,} rows")
        for other, missed, unused in done.state.get("others", ()):
            if missed:
                print(f"{other} has no row for {missed:,} of them", file=sys.stderr)
            if unused:
                print(f"{unused:,} rows of {other} have none here, left out", file=sys.stderr)
    else:
        done = _choose(args)
        print(f"{done.out}: {done.rows:,} of {done.state['read']:,} rows")
    tell_left_out(done.wrong)
    return done.exit_code


def _append(args: argparse.Namespace) -> Done:
    if not args.fill:
        _same_columns(args.sources)
    return run_plan(Plan("merge", args.sources, {}), args.out, Options.of(args))


def _same_columns(sources: list[Path]) -> None:
    tables = [open_table(source) for source in sources]
    for table in tables:
        table.close()
    first = tables[0]
    for other in tables[1:]:
        for one, two in ((first, other), (other, first)):
            missing = [name for name in one.names if name not in two.names]
            if missing:
                raise ManifestError(
                    f"{two.source}: no column {missing[0]!r}, which {one.source} has",
                    hint="--fill leaves it empty; --on path puts columns side by side",
                )


def _join(args: argparse.Namespace) -> Done:
    from trainer.data.tools.lookup import Lookup

    first, *others = args.sources
    if not others:
        raise ManifestError("merge --on needs a second manifest")
    lookups: list[Lookup] = []
    with contextlib.closing(open_table(first, (args.on,))) as table:
        present = list(table.names)
    for other in others:
        lookups.append(Lookup(other, args.on, present))
        if not lookups[-1].names:
            raise ManifestError(f"{other} has no column that is not there already")
        present += lookups[-1].names

    state: dict[str, Any] = {}

    def prepare(job: Job, progress: RowProgress) -> None:
        nonlocal state
        state = job.state
        said = state.setdefault("others", [])  # name, rows that miss it, rows that nobody uses
        for number, lookup in enumerate(lookups):
            path = job.folder / f"other-{number}.sqlite"
            if number == len(said) or not path.is_file():
                job.leave_out(lookup.fill(path, progress))
                said[number:] = [[lookup.source.name, 0, 0]]
                job.save_state()
            lookup.open(path)

    def give(batch: Batch, _: Any) -> Result:
        for lookup, said in zip(lookups, state["others"], strict=True):
            columns, missed = lookup.columns(batch)
            batch = batch.with_columns(columns)
            said[1:] = [said[1] + missed, lookup.unused]
        return batch, ()

    plan = Plan(
        "merge",
        [first],
        {"on": args.on, "others": [lookup.identity() for lookup in lookups]},
        required=(args.on,),
        names=lambda present: list(
            dict.fromkeys([*present, *(n for k in lookups for n in k.names)])
        ),
        more_types=lambda: {name: kind for k in lookups for name, kind in k.types().items()},
        prepare=prepare,
        give=give,
    )
    try:
        return run_plan(plan, args.out, Options.of(args))
    finally:
        for lookup in lookups:
            lookup.close()


def _choose(args: argparse.Namespace) -> Done:
    names = [name.strip() for name in args.on.split(",")]
    other: Path | None = getattr(args, "other", None)
    keep: NDArray[np.bool_] = np.zeros(0, bool)
    decide: dict[str, Callable[..., NDArray[np.bool_]]] = {
        "dedupe": first_of_each,
        "intersect": also_in,
        "difference": lambda mine, others: ~also_in(mine, others),
    }

    def prepare(job: Job, progress: RowProgress) -> None:
        nonlocal keep
        path = job.folder / "keep.npy"
        if "read" not in job.state or not path.is_file():
            tables = [source for source in (args.source, other) if source is not None]
            buckets = []
            for number, source in enumerate(tables):
                buckets.append(Buckets(job.folder / "keys", str(number)))
                with contextlib.closing(open_table(source, names)) as table:
                    buckets[-1].fill(table, names, lambda share, rows: progress.at(share / 2, rows))
                    if number:  # those of the first are found again
                        job.leave_out(
                            [WrongRow(r.line, f"{source.name}: {r.reason}") for r in table.wrong]
                        )
            np.save(path, decide[args.verb](*buckets))
            job.state["read"] = buckets[0].rows
            job.save_state()
        keep = np.load(path, allow_pickle=False)

    def give(batch: Batch, _: Any) -> Result:
        chosen = np.flatnonzero(keep[batch.start : batch.start + len(batch)]).tolist()
        return (batch if len(chosen) == len(batch) else batch.take(chosen)), ()

    arguments: dict[str, Any] = {"on": names}
    if other is not None:
        from trainer.data.manifest.resumable_write import identity

        open_table(other, names).close()  # a missing column is told before anything is begun
        arguments["other"] = identity(other)
    plan = Plan(args.verb, [args.source], arguments, required=names, prepare=prepare, give=give)
    return run_plan(plan, args.out, Options.of(args))
