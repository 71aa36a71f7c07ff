"""`--tiny`: the whole path of a benchmark on the least work, so that every test run can run it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

NOTE = "tiny run: its figures mean nothing"


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, **least: object
) -> argparse.Namespace:
    """Parse the options; with `--tiny` the values in `least` replace the defaults."""
    parser.add_argument("--tiny", action="store_true", help="least work, only to see that it runs")
    options = parser.parse_args(argv)
    assert least.keys() <= vars(options).keys(), "a name in `least` is not an option"
    if not options.tiny:
        return options
    print(NOTE, flush=True)
    parser.set_defaults(**least)
    return parser.parse_args(argv)
