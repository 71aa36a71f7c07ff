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
from typing import Any

from trainer.command_line import INTERRUPTED, NUMBERS, above_0, command, require
from trainer.errors import ConfigError
from trainer.runlog.output import LOG
from trainer.runlog.units import counted

if __name__ == "__main__":  # before the imports that need them
    require(*NUMBERS)

_DESCRIPTION = """\
Measure a card, the most valuable figures first; loses nothing when it is cut.

A terminal shows a line for each phase; a pipe gets each figure as a line of JSON. Both end with
the table. Ctrl-C ends it: what was measured is in the record; `second --after` it measures the rest.

exit codes
  0    every phase is measured
  1    a phase is WRONG, PARTLY, FAILED, OUT OF MEMORY, TIMED OUT or CUT, or a result is not written
  2    wrong options, no CUDA, or a folder or record that cannot be used
  130  interrupted, by Ctrl-C, SIGTERM or SIGHUP"""
_EPILOG = """\
examples
  python -m tests.gpu first --out /tmp/gpu --send out --deadline 510
  python -m tests.gpu first --out /tmp/gpu --device cpu --tiny --only correct
  python -m tests.gpu table out/first.jsonl"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        "python -m tests.gpu",
        allow_abbrev=False,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for name, what, deadline_s in (
        ("first", "all items, by value", 510.0),
        ("second", "what failed in the first, then further buckets and settings", 240.0),
    ):
        add = verbs.add_parser(name, help=what, allow_abbrev=False).add_argument
        add("--out", type=_path, required=True, metavar="DIR", help="a local folder to work in")
        add("--send", type=_path, metavar="DIR", help="gets at most three files, always whole")
        add("--deadline", type=above_0, default=deadline_s, metavar="S", help="default %(default)g")
        add("--device", choices=("cuda", "cpu"), default="cuda", help="default %(default)s")
        add("--tiny", action="store_true", help="small shapes, to rehearse")
        add("--only", nargs="+", metavar="TEXT", help="phases with one of these in their names")
        if name == "second":
            add("--after", type=_path, metavar="FILE", help="default DIR/first.jsonl")
    table = verbs.add_parser("table", help="a record as a page of the documents")
    table.add_argument("record", type=_path, metavar="FILE", help="first.jsonl")
    args = parser.parse_args(words)
    return _page(args.record) if args.verb == "table" else _measure(args, words)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return Path(text)


def _page(path: Path) -> int:
    from tests.gpu.report import as_document

    print(as_document(_record(path)), end="")
    return 0


def _record(path: Path) -> list[dict[str, Any]]:
    """The lines of a record; says how many were left out."""
    from tests.gpu.report import is_row, read_lines

    try:
        lines, strange = read_lines(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if strange:
        are = "is cut or does" if strange == 1 else "are cut or do"
        LOG.warning("%s of %s %s not belong to a record", counted(strange, "line"), path, are)
    if not any(map(is_row, lines)):
        raise ConfigError(f"{path} is no record of tests.gpu: it has no result of a phase")
    return lines


def _measure(args: argparse.Namespace, words: Sequence[str]) -> int:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _interrupt) for number in numbers]
    try:
        return _phases(args, words)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _phases(args: argparse.Namespace, words: Sequence[str]) -> int:
    import torch

    from tests.gpu import phases as of_phases
    from tests.gpu.report import Record, Watch, show, table_of
    from tests.gpu.run import MEASURED, Options, run_phases

    options = Options(args.out.absolute(), args.device, args.tiny)
    if args.verb == "first":
        phases = of_phases.first(options)
    else:
        phases = of_phases.second(options, _before(args))
    wanted = args.only or [""]
    chosen = [phase for phase in phases if any(text in phase.name for text in wanted)]
    if not chosen and args.only:
        names = "; ".join(dict.fromkeys(phase.name for phase in phases))
        asked = " or ".join(args.only)
        raise ConfigError(f"no phase has {asked} in its name", hint=f"phases: {names}")
    if args.device == "cuda" and torch.version.cuda is None:
        built = f"torch {torch.__version__} is built without CUDA"
        raise ConfigError(built, hint="to rehearse on the CPU: --device cpu --tiny")
    # A record of some phases stands beside that of all, which `second` reads.
    name = f"{args.verb}-only" if args.only else args.verb
    record = Record(name, options.out, args.send and args.send.absolute())
    watch = Watch(record, len(chosen), args.deadline)
    was_interrupted = False
    try:
        record.line({**_head(words), "device": args.device, "tiny": args.tiny})
        run_phases(chosen, options, args.deadline, watch)
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        record.close()
    rows = watch.rows
    show(table_of(rows, watch.columns))
    good = sum(row["result"] == MEASURED for row in rows)
    rehearsed = " in a rehearsal" if args.tiny or args.device == "cpu" else ""
    show(f"{good} of {len(chosen)} measured{rehearsed}; {record.path}")
    if was_interrupted:
        LOG.error("interrupted; what was measured is in %s", record.path)
        return INTERRUPTED
    return 0 if good == len(chosen) and record.is_whole else 1


def _before(args: argparse.Namespace) -> list[dict[str, Any]]:
    """What `first` has recorded."""
    path = args.after or args.out / "first.jsonl"
    if args.after or path.exists():
        lines = _record(path)
        head = next((line for line in lines if "command" in line), {})
        asked = {"device": args.device, "tiny": args.tiny}
        if any(head.get(name, value) != value for name, value in asked.items()):
            raise ConfigError(
                f"{path} was measured with other options: {head['command']}",
                hint="name the record of these with --after",
            )
        return lines
    LOG.warning("%s does not exist: the phases of `first` are left out", path)
    return []


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
