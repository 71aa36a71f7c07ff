"""Measure one card: `python -m tests.gpu first --out DIR --send DIR`."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import torch

from tests.gpu.phases import first, second
from tests.gpu.report import Record, as_document, is_row, read_lines
from tests.gpu.run import MEASURED, Options, run_phases

USAGE, INTERRUPTED = 2, 130
_EPILOG = """\
examples
  python -m tests.gpu first --out /tmp/gpu --send out --deadline 510
  python -m tests.gpu first --out /tmp/gpu --device cpu --tiny --only correct
  python -m tests.gpu table out/first.jsonl"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        allow_abbrev=False,
        description="Measure a card, the most valuable figures first; loses nothing when it is cut.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for name, what, deadline_s in (
        ("first", "all items, by value", 510.0),
        ("second", "what failed in the first, then further buckets and settings", 240.0),
    ):
        add = verbs.add_parser(name, help=what, allow_abbrev=False).add_argument
        add("--out", type=Path, required=True, metavar="DIR", help="a local folder to work in")
        add("--send", type=Path, metavar="DIR", help="gets at most three files, always whole")
        add("--deadline", type=float, default=deadline_s, metavar="S", help="default %(default)g")
        add("--device", choices=("cuda", "cpu"), default="cuda")
        add("--tiny", action="store_true", help="small shapes, to rehearse")
        add("--only", nargs="+", metavar="TEXT", help="phases with one of these in their names")
        if name == "second":
            add("--after", type=Path, metavar="FILE", help="default DIR/first.jsonl")
    table = verbs.add_parser("table", help="a record as a page of the documents")
    table.add_argument("record", type=Path, metavar="FILE", help="first.jsonl")
    args = parser.parse_args(words)
    if args.verb == "table":
        return _page(args.record)
    return _measure(args, words)


def _page(path: Path) -> int:
    try:
        lines = read_lines(path)
    except OSError as error:
        return _refused(f"{path} cannot be read: {error.strerror}")
    if not any(map(is_row, lines)):
        return _refused(f"{path} is no record of tests.gpu: it has no result of a phase")
    print(as_document(lines), end="")
    return 0


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return USAGE


def _measure(args: argparse.Namespace, words: Sequence[str]) -> int:
    options = Options(args.out.absolute(), args.device, args.tiny)
    if args.verb == "first":
        phases = first(options)
    else:
        path = args.after or args.out / "first.jsonl"
        phases = second(options, read_lines(path) if path.is_file() else [])
    wanted = args.only or [""]
    chosen = [phase for phase in phases if any(text in phase.name for text in wanted)]
    if not chosen and args.only:
        names = "; ".join(dict.fromkeys(phase.name for phase in phases))
        return _refused(f"no phase has {' or '.join(args.only)} in its name; phases: {names}")
    if args.device == "cuda" and torch.version.cuda is None:
        built = f"torch {torch.__version__} is built without CUDA"
        return _refused(f"{built}; to rehearse on the CPU: --device cpu --tiny")
    # A record of some phases stands beside that of all, which `second` reads.
    name = f"{args.verb}-only" if args.only else args.verb
    record = Record(name, options.out, args.send and args.send.absolute())
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        record.line(_head(words))
        rows = run_phases(chosen, options, args.deadline, record.line, record.table)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {record.path}", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
        record.close()
    good = sum(row["result"] == MEASURED for row in rows)
    print(f"{good} of {len(rows)} measured; {record.path}")
    return 0 if good == len(rows) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _head(words: Sequence[str]) -> dict[str, object]:
    """Card, software and command, the first line of a record."""
    return {
        **_card(),
        "schema": 1,
        "command": f"python -m tests.gpu {shlex.join(words)}",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "torch": version("torch"),
    }


def _card() -> dict[str, object]:
    """As the driver's tool names it: this process must hold no memory of the card."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    name, _, driver = said.partition("\n")[0].partition(", ")
    return {"gpu": name, "driver": driver}


if __name__ == "__main__":
    sys.exit(main())
