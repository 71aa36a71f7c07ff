"""`python -m trainer.weights inspect PATH [--json]` and `convert SRC DST [--dtype bf16]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.command_line import INTERRUPTED, TRAINING, Parser, command, require

if __name__ == "__main__":  # before the imports that need them
    require(*TRAINING)

from trainer.runlog.output import LOG
from trainer.runlog.progress import ByteProgress
from trainer.weights.contents import as_lines, inspect
from trainer.weights.convert import DTYPES, FORMATS, convert

_DESCRIPTION = "Look into weights of any format, and convert them."
_EXAMPLES = """\
examples:
  python -m trainer.weights inspect outputs/008-STDiT3-XL-2/epoch4-global_step2210
  python -m trainer.weights convert PixArt-Sigma-XL-2-2K-MS.pth start/ --from pixart --dtype bf16"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return _inspect(args) if args.command == "inspect" else _convert(args)
    except KeyboardInterrupt:
        LOG.error("interrupted; nothing was written")
        return INTERRUPTED


def _parser() -> Parser:
    parser = Parser("weights", _DESCRIPTION, epilog=_EXAMPLES, allow_abbrev=False)
    kind = argparse.ArgumentParser
    verbs = parser.add_subparsers(dest="command", required=True, parser_class=kind)
    look = verbs.add_parser("inspect", help="which model it is, its tensors by prefix, its config")
    look.add_argument("path", help="file, folder, checkpoint, run directory or hub id")
    look.add_argument("--json", action="store_true", help="one document, with every key")
    turn = verbs.add_parser("convert", help="write it as safetensors, whole or not at all")
    add = turn.add_argument
    add("source", metavar="SRC")
    add("target", metavar="DST", type=Path)
    add("--to", choices=FORMATS, help="default: by DST's suffix, else hf-folder")
    add("--dtype", choices=tuple(DTYPES), help="default: as it is")
    add("--from", dest="start", choices=("pixart",), help="make an STDiT3 of PixArt")
    add("--weights", choices=("ema", "model"), default="ema", help="of a checkpoint")
    add("--seed", type=int, default=42, help="of what PixArt does not have")
    add("--overwrite", action="store_true", help="replace DST")
    add("--allow-partial", action="store_true", help="also below 99 %% of the tensors")
    return parser


def _inspect(args: argparse.Namespace) -> int:
    found = inspect(args.path)
    if args.json:
        print(json.dumps({"schema": 1, "command": "weights inspect", **found}))
    else:
        print("\n".join(as_lines(found)))
    return 0


def _convert(args: argparse.Namespace) -> int:
    with ByteProgress(str(args.target)) as progress:
        same = ("to", "dtype", "seed", "overwrite", "allow_partial")
        options = {name: getattr(args, name) for name in same}
        options |= {"pixart": args.start == "pixart", "ema": args.weights == "ema"}
        report = convert(args.source, args.target, **options, progress=progress)
    if report is not None:
        for line in (report.summary(), *report.lines()):
            LOG.info(line)
    print(args.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
