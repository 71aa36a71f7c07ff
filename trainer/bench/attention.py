"""`python -m trainer.bench attention`: every kernel of attention on the shapes of a config."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from trainer.bench.attention_shapes import AttentionShape, read_shapes, shapes_of_config
from trainer.bench.attention_trial import NotAvailable, Timing, attention_trial, why_not
from trainer.bench.attention_winners import Result, table_document, winners
from trainer.bench.buckets import device_of
from trainer.bench.child import Kind, Outcome, Progress, try_in_child
from trainer.bench.rows import print_columns
from trainer.command_line import Parser, above_0
from trainer.config import load as configuration
from trainer.device import name_of
from trainer.errors import ConfigError
from trainer.models.attention import flash3
from trainer.models.attention.table import KERNELS
from trainer.runlog import units
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.output import LOG
from trainer.runlog.progress import StepProgress

_DESCRIPTION = """\
Times every kernel of spatial, temporal and text attention, forward and backward, for each number
of keys that the buckets of a config have (default stage1), on random numbers: bf16 on a GPU, fp32
on a CPU. Each runs in its own process. A kernel wins by the sum of both passes, unless each new
shape stalls it for more than 0.2 s (cuDNN plans every shape) or its numbers are wrong.

--write makes the file for the config's attention_table; that needs a GPU."""
_EPILOG = """\
examples
  python -m trainer.bench attention stage1 --write attention-h100.json
  python -m trainer.bench attention stage1 --flash FA3 --write attention-fa3.json
  python -m trainer.bench attention --bucket 360p:51 --json
  python -m trainer.bench attention demo --device cpu --shapes temporal:8x15x64 text:2x4x16x20"""


def main(argv: Sequence[str]) -> int:
    args, overrides = _parser().parse_known_args(argv)
    config = configuration.load(args.config, overrides)
    device = device_of(args.device)
    if args.write is not None:
        _require_writable(args.write, device)
    if args.shapes and args.bucket:
        raise ConfigError("--shapes and --bucket exclude each other")
    shapes = read_shapes(config, args.shapes or ()) or shapes_of_config(config, args.bucket or ())
    results = []
    for number, shape in enumerate(shapes):
        for kernel in KERNELS[shape.kind]:
            title = f"shape {number + 1} of {len(shapes)}: {shape.name}, {kernel}"
            results.append(_try(shape, kernel, device, args.timeout_s, title, args.flash))
    header = {**_header(device, argv), "flash": args.flash}
    document = table_document(results, header)
    if args.json:
        head = {"schema": 1, **header, "command": "bench attention", "config": args.config}
        head |= {"device": device, "command_line": header["command"]}
        best = {shape.name: found and found.kernel for shape, found in winners(results).items()}
        tables = {kind: document[kind] for kind in KERNELS}
        lines = [result.to_json() for result in results]
        rest = {"winners": best, "table": tables, "not_measured": document["not_measured"]}
        print(json.dumps(head | {"rows": lines} | rest))
    else:
        _print(results, document, device != "cpu")
    without = [shape.name for shape, found in winners(results).items() if found is None]
    if without:
        LOG.warning(f"no kernel can be used for {', '.join(without)}")
    if args.write is not None:
        if len(document["not_measured"]) == len(KERNELS):
            raise ConfigError(f"nothing is written to {args.write}: no kernel could be measured")
        _write(args.write, document)
    return 1 if without else 0


def _parser() -> Parser:
    parser = Parser("bench attention", _DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("config", nargs="?", default="stage1", help="config file or its short name")
    add("--bucket", action="append", metavar="NAME:FRAMES", help="only this one, e.g. 360p:102")
    what = "instead of the config's: KIND:CLIPSxFRAMESxPLACES, for text with xTOKENS"
    add("--shapes", nargs="+", metavar="SHAPE", help=what)
    add("--write", type=Path, metavar="FILE", help="the winners, for attention_table")
    what = "what flash and varlen are: torch's own, or flash attention 3 where it is installed"
    add("--flash", choices=flash3.NAMES, default="FA2", help=what)
    add("--device", help="cuda or cpu; default cuda if available")
    add("--timeout-s", type=above_0, default=60.0, metavar="X", help="of one kernel on one shape")
    add("--json", action="store_true", help="one document on stdout")
    return parser


def _measure(
    shape: AttentionShape, kernel: str, device: str, flash: str, progress: Progress
) -> Timing | NotAvailable:
    if flash == "FA3" and (why := flash3.why_not()):
        return NotAvailable(why)
    return attention_trial(shape, kernel, device, progress)


def _try(
    shape: AttentionShape, kernel: str, device: str, timeout_s: float, title: str, flash: str
) -> Result:
    # Known at once: a process of its own would take a second.
    if reason := why_not(shape, kernel, torch.device(device)):
        return Result(shape, kernel, Outcome(Kind.MEASURED, NotAvailable(reason)))
    if not sys.stderr.isatty():
        LOG.info(title)
    with StepProgress(title) as progress:
        work = functools.partial(_measure, shape, kernel, device, flash)
        return Result(shape, kernel, try_in_child(work, device, timeout_s, progress))


def _header(device: str, argv: Sequence[str]) -> dict[str, Any]:
    now = datetime.fromtimestamp(time.time(), timezone.utc)
    return {
        "device_name": name_of(device),
        "torch": torch.__version__,
        "date": now.isoformat(timespec="seconds"),
        "command": f"python -m trainer.bench attention {shlex.join(argv)}".strip(),
    }


def _print(results: Sequence[Result], document: dict[str, Any], is_gpu: bool) -> None:
    best, device_name = winners(results), document["device_name"]
    lines = []
    for result in results:
        timing, wins = result.timing, best[result.shape] is result
        cells = {"shape": result.shape.name, "keys": str(result.shape.keys)}
        cells |= {"kernel": result.kernel, "": "wins" if wins else result.reason}
        if timing is not None:
            cells |= {
                "forward": units.measured(timing.forward_s),
                "backward": units.measured(timing.backward_s),
                "peak": units.size(timing.peak_bytes),
                "error": f"{timing.error:.1e}",
                "new shape": units.measured(timing.new_shape_s),
            }
        lines.append(cells)
    names = ["shape", "kernel", "keys", "forward", "backward", "peak", "error"]
    print_columns([*names, "new shape", ""], lines, ("shape", "kernel", ""))
    print(f"\n{device_name}, torch {torch.__version__}")
    if not is_gpu:
        print("A CPU has a rule of its own in the place of a table (trainer/models/attention).")
        return
    for kind in KERNELS:
        rows = (
            f"{'any' if most is None else f'to {most}'}: {name}" for most, name in document[kind]
        )
        text = "not measured" if kind in document["not_measured"] else ", ".join(rows)
        print(f"{kind} by keys: {text}")


def _require_writable(path: Path, device: str) -> None:
    if not device.startswith("cuda"):
        raise ConfigError(
            "--write needs a GPU: on a CPU attention does not read attention_table",
            hint="leave --write out to see what runs here",
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--write {path}: there is no folder {path.parent}")


def _write(path: Path, document: dict[str, Any]) -> None:
    """Whole or not at all. Raises ConfigError."""
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"--write {path}: {error.strerror}") from None
    LOG.info(f"wrote {path}")
