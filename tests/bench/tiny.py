"""`--tiny`: the whole path of a benchmark on the least work, so that every test run can run it.

python -m tests.bench.tiny NAME… runs several in one process, which start what ranks are forked from once.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence

NOTE = "tiny run: its figures mean nothing"
ENDED = "--- ended:"


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None, **least: object
) -> argparse.Namespace:
    """Parse the options; with `--tiny` the values in `least` replace the defaults.

    From here on SIGTERM ends in order, so that what a benchmark has started ends with it.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser.add_argument("--tiny", action="store_true", help="least work, only to see that it runs")
    options = parser.parse_args(argv)
    assert least.keys() <= vars(options).keys(), "a name in `least` is not an option"
    if not options.tiny:
        return options
    print(NOTE, flush=True)
    parser.set_defaults(**least)
    return parser.parse_args(argv)


def main(names: Sequence[str]) -> int:
    """Behind the output of each benchmark stands `ENDED NAME CODE`, on a line of its own."""
    for name in names:
        sys.argv = [name, "--tiny"]
        code = 1
        try:
            code = importlib.import_module(f"tests.bench.{name}").main()
        except SystemExit as end:
            print(end)
        except Exception:  # noqa: BLE001 - the next ones run all the same
            traceback.print_exc()
        print(f"{ENDED} {name} {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
