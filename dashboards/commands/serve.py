"""Sample fixed prompts from each new checkpoint of runs, beside the training.

On this machine, or on other nodes over ssh; the training is not slowed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.runs.find import LONGEST_NUMBER
from clusterctl.settings import FILE, PATH, flag, line_output_options, option

NUMBERS = "Numbers of runs below --outputs: --expnums 656 657."
PRESET = "low4s, high4s, low16s, run (the run's own settings), or one of --presets; repeat it."
PRESETS = "Your own presets, a TOML table for each. Default: presets.toml where it exists."
PROMPTS = "One prompt a line. Default: those of the preset, of the run, or beside its data."
VALIDATE = "Measure the validation loss of each checkpoint, too."
NO_VIDEOS = "With --validate: nothing else."
WEIGHTS = "The average of the weights where there is one, or the weights."
LAST_STEP = "Only checkpoints of later steps."
EVERY = "Only checkpoints whose step is a multiple of N."
FIRST = "Of each epoch, only the first checkpoint."
ONCE = "Make what there is to make now, then exit."
GPUS = "Which GPUs of each node: 0,1, or none for the CPU. Default: all that nobody uses."
PYTHON = "Of the training environment on the nodes. Default: the one that runs this."
NODES = "Hostfile of the nodes that sample. Default: this machine."
COPIES = "Folder for runs of other clusters: weights while they are needed, and samples."
SAVE_TO = "Run in W&B that gets the videos, or new. Default: the training's own."
DETACH = "Return as soon as it has begun; it outlives the terminal."
STOP = "End the servers of these runs, wherever they are."
DRY_RUN = "Print what would be made, make nothing."


PORT = click.IntRange(0, 65535)


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """`656`, `656,657`."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words = str(value).replace(",", " ").split()
        if not words or not all(
            word.isascii() and word.isdigit() and len(word) <= LONGEST_NUMBER for word in words
        ):
            self.fail(f"{value!r} is not a number of a run", param, ctx)
        return tuple(map(int, words))


@click.command(
    "serve",
    epilog="""\b
Examples:
  clusterctl serve 656 --preset low4s
  clusterctl serve outputs/001-STDiT3-demo --once""",
)
@click.argument("runs", nargs=-1, metavar="RUN...")
@option("--expnums", "numbers", NUMBERS, type=Numbers(), multiple=True, metavar="N")
@option("--outputs", "Folder of the run directories.", type=PATH, default=Path("outputs"))
@option("--preset", "names", PRESET, multiple=True, metavar="NAME")
@option("--presets", PRESETS, type=FILE, metavar="FILE")
@option("--prompts", PROMPTS, type=FILE, metavar="FILE")
@flag("--validate", VALIDATE)
@flag("--no-videos", NO_VIDEOS)
@option("--weights", WEIGHTS, type=click.Choice(["ema", "model"]), default="ema")
@option("--last-step", LAST_STEP, type=click.IntRange(0), metavar="N")
@option("--every", EVERY, type=click.IntRange(1), default=1, metavar="N")
@flag("--only-first-of-epoch", FIRST)
@flag("--once", ONCE)
@option("--nodes", NODES, type=FILE, metavar="HOSTFILE")
@option("-w", "--only", "Only these nodes: n[1-3],n7.", metavar="SET")
@option("-x", "--without", "Leave these nodes out.", metavar="SET")
@option("--connect-timeout", "Seconds for a connection.", type=Duration(0.1), default=3.0)
@flag("--accept-new", "Write unknown host keys to clusterctl's own known_hosts.")
@flag("--compute-only", "Send nothing to W&B.")
@option("--save-to", SAVE_TO, default="", show_default=False, metavar="ID")
@option("--copies", COPIES, type=PATH, default=Path("served"))
@option("--gpus", GPUS, metavar="SET")
@option("--python", PYTHON, default=sys.executable, show_default=False, metavar="PATH")
@flag("--web", "Also serve the gallery: pip install '.[web]'.")
@option("--host", "Address that --web listens on.", default="127.0.0.1")
@option("--port", "Port of --web; 0 takes a free one.", type=PORT, default=8000)
@flag("--detach", DETACH)
@flag("--list", "list_servers", "The servers that follow these runs.")
@flag("--stop", STOP)
@click.option("--log", type=FILE, hidden=True)
@flag("--dry-run", DRY_RUN)
@line_output_options
def command(output: Output, **options: Any) -> int:
    """Sample fixed prompts from each new checkpoint of runs, beside the training.

    RUN is a run directory, the number or name of one in --outputs, a folder of runs, or HOST:PATH
    of a run on another cluster, over ssh; default: the newest. Videos are in
    samples/PRESET/CHECKPOINT of the run. What is finished is never made again, and several servers
    of one run share the work. Exit code 1 where videos could not be made, 3 where a node did not
    answer, and with --once where a run has no checkpoint yet.
    """
    from clusterctl.serve.begin import Wanted, begin
    from dashboards.gallery.page import write_gallery

    wanted = Wanted(**options)
    return begin(wanted, output, lambda run: write_gallery([run]))
