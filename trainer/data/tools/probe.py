"""`probe`: from path and text to a whole manifest: length, size and rate of every file.

python -m trainer.data probe clips.csv manifest.csv --workers 32
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.data.manifest.columns import DATASETS, parse_names
from trainer.data.manifest.computed import compute
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.manifest import COLUMNS, PROBED
from trainer.data.manifest.places import folder_of
from trainer.data.manifest.rewrite import rewriting
from trainer.data.tools.file_probe import (
    NOT_THERE,
    Answer,
    Cells,
    SeveralVideos,
    add_pool_options,
    asking,
    located,
    pool_of,
    root_hint,
)
from trainer.runlog.units import counted

MAX_UNREADABLE = 1000  # a mount that went away must not become a manifest without its clips
SIZE = "file_size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="csv or parquet with the columns path and text")
    parser.add_argument("out", type=Path, help="manifest to write, csv or parquet")
    parser.add_argument(
        "--columns",
        type=parse_names,
        metavar="OURS=THEIRS,…",
        help="columns that have other names in SOURCE, as in path=video,text=caption; or a data "
        f"set by name: {', '.join(DATASETS)}",
    )
    parser.add_argument(
        "--file-size", action="store_true", help="also a column file_size, in bytes"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")
    add_pool_options(parser, 30.0)
    add_options(parser, MAX_UNREADABLE)


def run(args: argparse.Namespace) -> int:
    """Probe every file; sizes are those after the container's rotation."""
    added = [*PROBED, SIZE] if args.file_size else [*PROBED]
    arguments = {"root": str(args.root or ""), "file_size": args.file_size}
    arguments |= {"columns": args.columns} if args.columns else {}

    folder = args.root or folder_of(args.source)

    several = SeveralVideos()

    def cells_of(row: Cells, answer: Answer) -> Cells:
        several.see(row[0], answer)
        if "error" in answer:
            return [*[""] * len(added), f"{located(folder, row[0])}: {answer['error']}"]
        height, width, fps = answer["height"], answer["width"], answer["fps"]
        facts = {
            **answer,
            "aspect_ratio": round(height / width, 4),
            "fps": round(fps, 4) if fps else "",  # a still has no rate
            "resolution": height * width,
            SIZE: answer["bytes"],
        }
        return [*(str(facts[name]) for name in added), ""]

    with pool_of(args) as (pool, ahead), rewriting(args, [args.source], arguments) as made:
        source = made.add(args.source, ("path", "text"))
        made.hint += root_hint(args, folder)
        ask = asking(pool, "probe", folder, len(added), cells_of)
        rows = compute(made, source, ["path"], added, ask, 64, ahead)
        made.notes += several.notes()
        made.write([rows], [*dict.fromkeys([*COLUMNS, *added, *source.names])])
        if any(NOT_THERE in row.reason for row in made.wrong):
            made.notes.append(f"hint: {root_hint(args, folder)[2:]}")
    if args.json:
        print(json.dumps(made.document("probe")))
        return made.end()
    return made.report(counted(made.rows, "row"))
