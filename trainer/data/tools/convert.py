"""`convert` and `clean-captions`: the same rows in another form.

python -m trainer.data convert manifest.csv manifest.parquet
python -m trainer.data clean-captions manifest.csv clean.csv --workers 8
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

from trainer.captions import clean_caption
from trainer.command_line import whole
from trainer.data.manifest.computed import NEVER, Cells, compute
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.rewrite import Rewrite, Rows, rewriting
from trainer.data.video import helper_process
from trainer.runlog.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="manifest to write; its name says csv or parquet")
    if parser.prog.endswith("clean-captions"):
        parser.add_argument(
            "--workers", type=whole(1), default=os.cpu_count() or 1, help="processes"
        )
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.verb == "convert":
        with rewriting(args, [args.source]) as made:
            made.write([Rows(made.add(args.source))])
        return made.report(counted(made.rows, "row"))
    with rewriting(args, [args.source], {}) as made:
        changed, empty = _clean(made, args.source, args.workers)
    more = f", {empty:,} empty" if empty else ""
    return made.report(f"{counted(made.rows, 'row')}, {counted(changed, 'caption')} changed{more}")


def clean_texts(rows: Sequence[Cells]) -> list[Cells]:
    """In a separate process: each caption clean, whether it changed, no reason."""
    return [
        [text := clean_caption(before), str(int(text != before)), NEVER, ""] for (before,) in rows
    ]


def _clean(made: Rewrite, path: Path, workers: int) -> tuple[int, int]:
    """How many captions changed, and how many are empty now."""
    source = made.add(path, ("text",))
    # spawn: a fork would copy pyarrow's threads' locks
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start unblocks the signals that are held below
    with helper_process.signals_held():
        # the pool ends its processes with SIGTERM
        start = os.getpid(), "captions", (signal.SIGINT,)
        processes = context.Pool(workers, helper_process.begin, start)
    with processes as pool:

        def ask(rows: list[Cells]) -> Callable[[], list[Cells]]:
            return pool.apply_async(clean_texts, (rows,)).get

        rows = compute(made, source, ["text"], ["text"], ask, 1024, 2048 * workers, ["changed"])
    made.write([rows])
    counts = "count(*) FILTER (c1 = '1'), count(*) FILTER (c0 = '')"
    changed, empty = made.database.all(f"SELECT {counts} FROM {rows.beside[0].source.view}")[0]
    return changed, empty
