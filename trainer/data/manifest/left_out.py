"""Rows that a verb leaves out: the options about them, the limit, and what is printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.command_line import whole
from trainer.data.manifest.manifest import MAX_WRONG_ROWS, ManifestError, WrongRow
from trainer.runlog.units import counted

_LISTED = 20  # wrong rows that are printed
RESUME = "run the same command again to continue"


def add_options(parser: argparse.ArgumentParser, max_wrong_rows: int = MAX_WRONG_ROWS) -> None:
    """Options of every verb that writes a manifest."""
    parser.add_argument(
        "--root",
        type=Path,
        metavar="FOLDER",
        help="folder that relative paths start from, in OUT too; without it they start in the "
        "folder of their manifest",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--max-wrong-rows",
        type=whole(),
        default=max_wrong_rows,
        metavar="N",
        help="stop above this many rows that had to be left out (%(default)s)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def check_limit(
    where: Path, wrong: Sequence[WrongRow], limit: int, hint: str | None = None
) -> None:
    """Raise ManifestError with the first wrong rows when there are more than allowed."""
    if len(wrong) > limit:
        raise ManifestError(
            f"{where}: {counted(len(wrong), 'row')} had to be left out, {limit:,} are allowed"
            + listing(wrong),
            hint=hint,
        )


def report(wrong: Sequence[WrongRow]) -> None:
    """Print the number of rows left out and the first of them to stderr, if any."""
    if wrong:
        print(f"left out {counted(len(wrong), 'row')}{listing(wrong)}", file=sys.stderr)


def listing(wrong: Sequence[WrongRow]) -> str:
    shown = "".join(f"\n  line {row}" for row in wrong[:_LISTED])
    return shown + (f"\n  and {len(wrong) - _LISTED:,} more" if len(wrong) > _LISTED else "")
