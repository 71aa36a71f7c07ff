"""`merge`, `difference`, `intersect`, `dedupe`: rows of several manifests in the first's order.

python -m trainer.data merge pexels.csv openvid.csv all.csv
python -m trainer.data merge manifest.csv scores.csv scored.csv --on path   # columns side by side
python -m trainer.data difference all.csv seen.csv fresh.csv
python -m trainer.data intersect all.csv chosen.csv both.csv
python -m trainer.data dedupe all.csv unique.csv --on text
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from trainer.data.manifest.arrow_types import check_cells
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.rewrite import Columns, Rewrite, Rows, rewriting
from trainer.data.manifest.sql import Source, unescaped
from trainer.runlog.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verb = parser.prog.split()[-1]
    if verb == "merge":
        parser.add_argument("sources", type=Path, nargs="+", help="manifests, in order")
    else:
        parser.add_argument("source", type=Path, help="manifest whose rows are chosen")
        if verb != "dedupe":
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
    paths = args.sources if args.verb == "merge" else [args.source]
    if "other" in args:
        paths = [*paths, args.other]
    of = ""
    with rewriting(args, paths) as made:
        if args.verb != "merge":
            of = f" of {_choose(args, made):,}"
        elif args.on:
            _join(args, made)
        else:
            _append(args, made)
    return made.report(f"{made.rows:,}{of} rows" if of else counted(made.rows, "row"))


def _append(args: argparse.Namespace, made: Rewrite) -> None:
    sources = [made.add(path, named=len(args.sources) > 1) for path in args.sources]
    for other in () if args.fill else sources[1:]:
        for one, two in ((sources[0], other), (other, sources[0])):
            missing = [name for name in one.names if name not in two.names]
            if missing:
                raise ManifestError(
                    f"{two.path}: no column {missing[0]!r}, which {one.path} has",
                    hint="--fill leaves it empty; --on path puts columns side by side",
                )
    made.write([Rows(source) for source in sources])


def _join(args: argparse.Namespace, made: Rewrite) -> None:
    paths = args.sources[1:]
    if not paths:
        raise ManifestError("merge --on needs a second manifest")
    first = made.add(args.sources[0], (args.on,))
    present = list(first.names)
    beside: list[Columns] = []
    for path in paths:
        other = made.add(path, (args.on,), named=True)
        names = [name for name in other.names if name not in present]
        if not names:
            raise ManifestError(f"{path} has no column that is not there already")
        present += names
        for name in names:
            if "BLOB" in other.kind(name):
                raise ManifestError(
                    f"{path}: column {name!r} is binary, which merge --on cannot carry",
                    hint="write it as text, or leave it out",
                )
        if made.out.suffix == ".parquet":
            check_cells(made.database, other, names)
        _refuse_twice(made, other, args.on)
        _note_without_partner(made, first, other, args.on)
        beside.append(Columns(other, names, _partners(made, first, other, args.on)))
    made.write([Rows(first, beside=beside)])


def _partners(made: Rewrite, first: Source, other: Source, on: str) -> str:
    """A view of the other's row for each row of the first, in its order, or nulls."""
    theirs = f"SELECT *, {other.key([on])} AS k FROM {other.view}"
    return made.database.view(
        f"SELECT * EXCLUDE (n, k) FROM ({first.keys([on])}) LEFT JOIN ({theirs}) USING (k) "
        "ORDER BY n"
    )


def _note_without_partner(made: Rewrite, first: Source, other: Source, on: str) -> None:
    counts = []
    for one, two in ((first, other), (other, first)):
        theirs = f"SELECT {two.key([on])} FROM {two.view}"
        query = f"SELECT count(*) FROM {one.view} WHERE {one.key([on])} NOT IN ({theirs})"
        counts.append(made.database.all(query)[0][0])
    name, (without, unused) = other.path.name, counts
    if without:
        made.notes.append(f"{name} has no row for {without:,} of them")
    if unused:
        made.notes.append(f"{counted(unused, 'row')} of {name} without one here, left out")
    if without and on == "path" and first.folder != other.folder:
        made.notes.append(
            f"relative paths of {name} start in {other.folder}; --root FOLDER: all start there"
        )


def _refuse_twice(made: Rewrite, other: Source, on: str) -> None:
    """Two rows with one key: which would it be?"""
    found = made.database.all(
        f"SELECT min(n, 2) AS two FROM ({other.keys([on])}) GROUP BY k HAVING count(*) > 1 "
        "ORDER BY two[2] LIMIT 1"
    )
    for [(first, second)] in found:
        lines = other.lines([first, second])
        query = f"SELECT {other.text(on)} FROM {other.view} OFFSET {first} LIMIT 1"
        shown = unescaped(made.database.all(query)[0][0])
        raise ManifestError(
            f"{other.path}: {on} {shown!r} is in line {lines[first]} and in line {lines[second]}",
            hint=f"python -m trainer.data dedupe {other.path} unique{other.path.suffix} --on {on}",
        )


def _choose(args: argparse.Namespace, made: Rewrite) -> int:
    """Write some rows of a manifest; returns how many it has."""
    names = [name.strip() for name in args.on.split(",")]
    source = made.add(args.source, names)
    keys = source.keys(names)
    if args.verb == "dedupe":
        query = f"SELECT min(n) FROM ({keys}) GROUP BY k"
    else:
        other = made.add(args.other, names, named=True)
        relation = "IN" if args.verb == "intersect" else "NOT IN"
        others = f"SELECT {other.key(names)} FROM {other.view}"
        query = f"SELECT n FROM ({keys}) WHERE k {relation} ({others})"
    keep = np.zeros(source.rows, bool)
    keep[made.database.column(query)] = True
    made.write([Rows(source, keep)])
    return source.rows
