"""`probe`: from path and text to a whole manifest: length, size and rate of every file.

python -m trainer.data probe clips.csv manifest.csv --workers 32
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trainer.data.manifest.manifest import COLUMNS, PROBED, WrongRow
from trainer.data.manifest.pipeline import Done, Options, Plan, Result, add_options
from trainer.data.manifest.pipeline import run as run_plan
from trainer.data.manifest.table_io import Batch, path_fault, usable
from trainer.data.tools.file_probe import Answer, add_pool_options, answers, make_pool, questions
from trainer.data.tools.left_out import tell_left_out

MAX_UNREADABLE = 1000  # a mount that went away must not become a manifest without its clips
SIZE = "file_size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="csv or parquet with the columns path and text")
    parser.add_argument("out", type=Path, help="manifest to write, csv or parquet")
    parser.add_argument(
        "--file-size", action="store_true", help="also a column file_size, in bytes"
    )
    add_pool_options(parser, 30.0)
    add_options(parser, MAX_UNREADABLE)


def run(args: argparse.Namespace) -> int:
    """Probe every file; sizes are those after the container's rotation."""
    done = probe(args)
    print(f"{done.out}: {done.rows:,} rows")
    tell_left_out(done.wrong)
    return done.exit_code


def probe(args: argparse.Namespace) -> Done:
    """The work of the verb. Raises ManifestError, ExamineBroken."""
    pool, ahead = make_pool(args)
    folder = args.root or args.source.resolve().parent
    added = (*PROBED, SIZE) if args.file_size else PROBED

    def names(present: tuple[str, ...]) -> list[str]:
        others = [name for name in present if name not in (*COLUMNS, *added)]
        return [*COLUMNS, *([SIZE] if args.file_size else []), *others]

    def ask(batch: Batch) -> tuple[Batch, list[WrongRow], list[Future[Answer]]]:
        good, wrong = usable(batch, [("path", path_fault)])
        asked = questions("probe", good.column("path"), folder)
        return good, wrong, [pool.ask(question) for question in asked]

    def give(_: Batch, asked: tuple[Batch, list[WrongRow], list[Future[Answer]]]) -> Result:
        batch, wrong, futures = asked
        found = answers(futures)
        good = [place for place, answer in enumerate(found) if "error" not in answer]
        paths = batch.column("path")
        wrong += [
            WrongRow(batch.lines[place], f"{paths[place]}: {answer['error']}")
            for place, answer in enumerate(found)
            if "error" in answer
        ]
        facts = [columns_of(found[place]) for place in good]
        columns = {name: [fact[name] for fact in facts] for name in added}
        return batch.take(good).with_columns(columns), sorted(wrong, key=lambda row: row.line)

    plan = Plan(
        "probe",
        args.source,
        {"root": str(args.root or ""), "file_size": args.file_size},
        required=("path", "text"),
        names=names,
        ask=ask,
        give=give,
        read_rows=64,
        ahead=ahead,
    )
    try:
        return run_plan(plan, args.out, Options.of(args))
    finally:
        pool.close()


def columns_of(answer: Any) -> dict[str, Any]:
    """The columns that an answer fills. A still has no rate: its cell stays empty."""
    height, width, fps = answer["height"], answer["width"], answer["fps"]
    return {
        "num_frames": answer["num_frames"],
        "height": height,
        "width": width,
        "aspect_ratio": round(height / width, 4),
        "fps": round(fps, 4) if fps else None,
        "resolution": height * width,
        SIZE: answer["bytes"],
    }
