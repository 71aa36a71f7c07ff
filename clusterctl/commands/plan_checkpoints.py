"""Plan how often a run saves, and whether its checkpoints fit on the disk.

The interval is Young's: T* = sqrt(2 c M) of the time c that a save stops training and the time M
between failures. What a run has on record is measured; everything else is named as assumed.
"""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Any

import click

from clusterctl.checkpoints.subject import read_subject
from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.param_types import Duration, Number
from clusterctl.settings import PATH, flag, option, output_options

COUNT = click.IntRange(1, 10**12)
POSITIVE = Duration(0, min_open=True)
STEPS = "Steps of the whole run. Default: of the run, or max_steps."
RANKS = "Ranks of a run that has not started: the more, the more failures."
OUTPUTS = "Folder of the run directories. Default: the run's or config's."
ALL_RUNS = "Count failures of all runs in the folder, not only of this one."


@click.command(
    "plan-checkpoints",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  clusterctl plan-checkpoints outputs/003-STDiT3-XL-2
  clusterctl plan-checkpoints outputs/003-STDiT3-XL-2 --all-runs --json
  clusterctl plan-checkpoints stage1 --ranks 192 --step-time 9.5 --steps 2210
  clusterctl plan-checkpoints stage1 --steps 2210 --step-time 9.5 --ckpt-every 50""",
)
@click.argument("run_or_config", metavar="[RUN_DIR|CONFIG]", required=False)
@click.argument("overrides", metavar="[TRAINER OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@option(
    "--mtbf",
    "mtbf_h",
    "Hours between two failures.",
    type=Number(0, min_open=True),
    metavar="HOURS",
)
@option("--save-stall", "stall_s", "Seconds that training waits for a save.", type=POSITIVE)
@option("--step-time", "step_s", "Seconds of a step without saves.", type=POSITIVE)
@option("--steps", STEPS, type=COUNT)
@option("--ranks", RANKS, type=COUNT)
@option("--outputs", OUTPUTS, type=PATH)
@flag("--all-runs", ALL_RUNS)
@output_options
def command(
    output: Output,
    run_or_config: str | None,
    overrides: tuple[str, ...],
    outputs: Path | None,
    all_runs: bool,
    **options: Any,
) -> int:
    """Plan how often a run saves, and whether its checkpoints fit on the disk.

    Shows the interval that loses least time (Young's formula), and where each number comes from.
    RUN_DIR (or a number below outputs/) is a run that goes on or has ended; default: the newest
    one in outputs/. CONFIG is a file or short name of a run that has not started, with options
    for the trainer behind it; for it the failures of all runs in its outputs folder count. Exit
    code 1 when the checkpoints do not fit, 3 when that, or what ckpt_every should be, cannot be
    found out.
    """
    from clusterctl.checkpoints import report
    from clusterctl.checkpoints.plan import Stated, make_plan

    if run_or_config is not None and run_or_config.startswith("-"):
        names = [name for one in command.params for name in one.opts if name.startswith("-")]
        near = difflib.get_close_matches(run_or_config.partition("=")[0], names, 1)
        hint = f"did you mean {near[0]}?" if near else "options for the trainer follow CONFIG"
        raise UsageError(f"no option {run_or_config}", hint=hint)
    subject = read_subject(run_or_config, outputs, overrides, all_runs=all_runs)
    mtbf_h = options.pop("mtbf_h")
    stated = Stated(mtbf_s=None if mtbf_h is None else mtbf_h * 3600, **options)
    plan = make_plan(subject, stated, time.time())
    if output.json:
        output.document("plan-checkpoints", **report.document(plan))
    elif not output.quiet:
        output.line(report.about(plan), "bold")
        for line in report.figure_lines(plan):
            output.line(line)
        for line in report.interval_lines(plan):
            output.line(line)
        if plan.rows:
            output.table(report.COLUMNS, report.table_rows(plan), report.RIGHT)
        for line in report.disk_lines(plan):
            output.line(line)
        for text in plan.failures.texts if output.verbose else ():
            output.note(f"failure: {text}", "dim")
    output.summary(report.verdict(plan), plan.exit_code)
    return plan.exit_code
