"""`check`: decode every clip once; the result is a column, so nothing unread passes as good.

python -m trainer.data check manifest.csv checked.csv
python -m trainer.data filter checked.csv good.csv --checked
"""
# ruff: noqa: S608 - columns and views are named by number

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from trainer.data.manifest.computed import compute
from trainer.data.manifest.left_out import add_options
from trainer.data.manifest.places import folder_of
from trainer.data.manifest.rewrite import Rewrite, Rows, rewriting
from trainer.data.manifest.row_check import floats
from trainer.data.manifest.sql import unescaped
from trainer.data.tools.file_probe import (
    NOT_THERE,
    Answer,
    Cells,
    SeveralVideos,
    add_pool_options,
    asking,
    pool_of,
    root_hint,
)
from trainer.runlog.units import counted

COLUMN, GOOD = "check", "ok"
EXAMPLES = 3
_COMPARED = {"num_frames": "frames", "height": "rows", "width": "columns"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="manifest")
    parser.add_argument("out", type=Path, help="the same with a column check: ok, or the reason")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")
    add_pool_options(parser, 120.0)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Decode all frames of every clip and compare with the columns; all rows are kept."""
    arguments = {"root": str(args.root or ""), "clip_timeout_s": args.clip_timeout_s}
    with pool_of(args) as (pool, ahead), rewriting(args, [args.source], arguments) as made:
        source = made.add(args.source, ("path",))
        inputs = [name for name in ("path", *_COMPARED) if name in source.names]

        several = SeveralVideos()

        def cells_of(row: Cells, answer: Answer) -> Cells:
            several.see(row[inputs.index("path")], answer)
            return [verdict(dict(zip(inputs, row, strict=True)), answer), ""]

        folder = args.root or folder_of(args.source)
        made.hint += root_hint(args, folder)
        ask = asking(pool, "check", folder, 1, cells_of)
        rows = compute(made, source, inputs, [COLUMN], ask, 64, ahead)
        names = [*(name for name in source.names if name != COLUMN), COLUMN]
        made.notes += several.notes()
        made.write([rows], names)
        reasons, examples = _reasons(made, rows)
        if NOT_THERE in reasons:
            made.notes.append(f"hint: {root_hint(args, folder)[2:]}")
    bad = sum(reasons.values())
    if args.json:
        judged = {"ok": made.rows - bad, "reasons": reasons, "examples": examples}
        print(json.dumps(made.document("check") | judged))
    else:
        print(f"{args.out}: {counted(made.rows, 'row')}, {made.rows - bad:,} ok, {bad:,} not")
        for reason, count in reasons.most_common():
            print(f"{count:>8,}  {reason}")
            for path in examples[reason]:
                print(f"          {path}")
    return 1 if made.end() or bad else 0


def verdict(cells: Mapping[str, str], answer: Answer) -> str:
    """`ok` or the reason; the manifest's numbers are compared where it has them."""
    if "error" in answer:
        return str(answer["error"])
    for name, what in _COMPARED.items():
        if name in cells:
            has, stated = answer[name], float(floats([cells[name]])[0])
            # More frames than stated do no harm; fewer would be a window beyond the end.
            if has < stated if name == "num_frames" else has != stated:
                shown = f"{stated:g}" if stated == stated else "nothing"
                return f"has {has} {what}, the manifest says {shown}"
    return GOOD


def _reasons(made: Rewrite, rows: Rows) -> tuple[Counter[str], dict[str, list[str]]]:
    """How many clips are not good for which reason, and a few examples of each."""
    examples: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    path, found = rows.source.text("path"), rows.beside[0].source
    query = (
        f"SELECT path, c0 FROM (SELECT {path} AS path FROM {rows.source.view}) "
        f"POSITIONAL JOIN {found.view} WHERE c0 NOT IN ('', '{GOOD}')"
    )
    for cells in made.database.rows(query):
        clip, result = map(unescaped, cells)
        # Results that differ in numbers only are one reason in the report.
        reason = " ".join("N" if word.strip(",").isdigit() else word for word in result.split())
        counts[reason] += 1
        if counts[reason] <= EXAMPLES:
            shown = clip if result == reason else f"{clip}: {result}"
            examples.setdefault(reason, []).append(shown)
    return counts, examples
