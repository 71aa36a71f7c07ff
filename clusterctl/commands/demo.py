"""Two small nodes, a real training run over ssh, its videos and their score."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks import units
from clusterctl.output import Output
from clusterctl.settings import PATH, flag, option, output_options

if TYPE_CHECKING:
    from clusterctl.demo import DemoResult

STEPS = "Training steps. Default: the configuration's; fewer make worse videos."
SCORE = "Judge the sampled videos; the exit code then is the verdict."


@click.command(
    "demo",
    epilog="""\b
Examples:
  clusterctl demo
  clusterctl demo --keep      # and in a second terminal: clusterctl gpus HOSTFILE
  clusterctl demo --json --seed 7
  clusterctl demo --steps 20 --no-score     # only whether everything works here: half a minute""",
)
@option("--outputs", "Folder of data set and run directory.", type=PATH, default=Path("outputs"))
@option("--seed", "Of data and training.", type=click.IntRange(0), default=42)
@option("--steps", STEPS, type=click.IntRange(1))
@option("--score/--no-score", SCORE, default=True)
@flag("--keep", "Keep the nodes running at the end, until Ctrl-C.")
@output_options
def command(output: Output, outputs: Path, **options: Any) -> int:
    """Two small nodes, a real training run over ssh, its videos and their score.

    Exit code 0 when the videos show what their prompts say, 1 when the score is too low for that.
    """
    from clusterctl.demo import run_demo

    started = time.monotonic()
    keep = options["keep"]

    def show(result: DemoResult) -> None:
        if output.json:
            output.line(json.dumps(asdict(result)))
        else:
            _show(output, result, time.monotonic() - started, keep=keep)
        output.flush()

    return 0 if run_demo(outputs, output, show, **options).is_good else 1


def _show(output: Output, result: DemoResult, seconds: float, *, keep: bool) -> None:
    from clusterctl.demo import DIGIT_FLOOR, DIRECTION_FLOOR, typed_command, typed_python

    took = f"{units.duration(seconds)}, {units.duration(result.train_seconds)} of it training"
    output.line(f"done in {took}", "bold")
    for name, value, chance, floor in (
        ("digit accuracy", result.digit_accuracy, 0.10, DIGIT_FLOOR),
        ("direction accuracy", result.direction_accuracy, 0.25, DIRECTION_FLOOR),
    ):
        if value is not None:
            verdict, style = ("ok", "good") if value >= floor else (f"below {floor:.2f}", "bad")
            output.line(f"  {name:19} {value:.2f}  (chance {chance:.2f})  {verdict}", style)
    if points := result.validation:  # the first one is before the first step
        shown = {one.step: one for one in (points[0], points[len(points) // 2], points[-1])}
        curve = ", ".join(f"{one.model:.3f} at step {step}" for step, one in shown.items())
        output.line(f"  validation loss     {curve}")
    output.line(f"  run directory       {result.run_dir}")
    output.line(f"  videos              {result.run_dir}/samples/sample_0000.mp4 …")
    output.line(f"  contact sheet       {result.contact_sheet}")
    output.line(f"  loss curves         {result.loss_curve}")
    output.line(f"  gallery             {result.gallery}")
    output.line("next")
    clusterctl = typed_command()
    output.line(f"  {clusterctl} top --replay {result.run_dir}")
    if not keep:
        output.line(f"  {clusterctl} demo --keep      # keeps the nodes up for a second terminal")
    bench = "-m trainer.bench demo --threads 1 --grad-checkpoint all"
    output.line(f"  {typed_python()} {bench}      # times an option of training")
    output.line(f"  {clusterctl} preflight nodes.txt      # your own machines, one name a line")
