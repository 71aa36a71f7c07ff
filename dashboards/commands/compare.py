"""Compare runs: losses at equal steps and clips, times of steps, incidents, settings.

Reads the run directories on this machine; no node is asked.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.param_types import Percent
from clusterctl.settings import FILE, option, output_options

if TYPE_CHECKING:
    from clusterctl.compare.judge import Comparison

LETTERS = "ABCDEFGH"
LOSS = "Exit code 1 where the loss of the last half is so much above A's: 1%."
SLOW = "Exit code 1 where a clip takes so many more rank-seconds: 5%."
OUT = "Write a page with the curves; - is stdout."


@click.command(
    "compare",
    epilog="""\b
Examples:
  clusterctl compare 3 4
  clusterctl compare outputs/003-demo outputs/004-demo --out curves.html
  clusterctl compare 3 4 5 --max-loss-increase 1% --max-slowdown 5%""",
)
@click.argument("runs", nargs=-1, metavar="A B...")
@option("--max-loss-increase", LOSS, type=Percent(0), metavar="PERCENT")
@option("--max-slowdown", SLOW, type=Percent(0), metavar="PERCENT")
@option("--out", OUT, type=FILE, metavar="FILE")
@output_options
def command(
    output: Output,
    runs: tuple[str, ...],
    max_loss_increase: float | None,
    max_slowdown: float | None,
    out: Path | None,
) -> int:
    """Compare runs: losses at equal steps and clips, times of steps, incidents, settings.

    A and B are run directories, or numbers or names of runs in outputs/; all are compared with A.
    Only steps that count are read: none that was done again after a restart. A difference comes
    with the interval of 95 % of its median over windows. A limit is exceeded where all of the
    interval is above it (exit code 1), and not known where a part is (exit code 3).
    """
    from clusterctl.compare.document import comparison_json, run_json
    from clusterctl.compare.judge import Limits, compare, exit_code
    from clusterctl.compare.read import read
    from clusterctl.runs.find import find_run

    if not 2 <= len(runs) <= len(LETTERS):
        text = f"compare needs two to {len(LETTERS)} runs, not {len(runs)}"
        raise UsageError(text, hint="clusterctl compare 3 4")
    folders = [find_run(name) for name in runs]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("one run is named twice, so there is nothing to compare it with")
    with output.waiting(f"reading {len(folders)} runs"):
        first, *others = [read(folder) for folder in folders]
    limits = Limits(max_loss_increase, max_slowdown)
    found = [compare(first, other, limits) for other in others]
    code = exit_code(found)
    if out is not None:
        _write_page(output, out, found)
    if output.json and out != Path("-"):
        every = [run_json(first, found[0].rates[0])]
        every += [run_json(one.b, one.rates[1]) for one in found]
        comparisons = [comparison_json(one) for one in found]
        page = None if out is None else str(out)
        output.document("compare", runs=every, comparisons=comparisons, page=page, exit_code=code)
    elif out != Path("-"):
        _show(output, found)
    return code


def _show(output: Output, found: list[Comparison]) -> None:
    from clusterctl.compare import show

    first = found[0]
    if not output.quiet:
        for letter, run in zip(LETTERS, [first.a, *(one.b for one in found)], strict=False):
            for text, style in show.head(letter, run):
                output.line(text, style)
    for letter, one in zip(LETTERS[1:], found, strict=False):
        if not output.quiet:
            if len(found) > 1:
                output.line(f"\n{letter} against A", "bold")
            for text, style in show.loss_lines(one, letter):
                output.line(text, style)
            output.table(
                ["", "A", letter, "CHANGE"], list(show.table_rows(one)), ["A", letter, "CHANGE"]
            )
            for text, style in show.change_lines(one):
                output.line(text, style)
        is_bare = output.quiet and not one.verdicts
        said = show.loss_lines(one, letter) if is_bare else show.verdict_lines(one, letter)
        for text, style in said:
            output.line(text, style)


def _write_page(output: Output, out: Path, found: list[Comparison]) -> None:
    from dashboards.report.comparison import page
    from trainer.runlog.atomic_file import write_whole

    text = page(found, LETTERS[: len(found) + 1], time.time())
    if out == Path("-"):
        output.lines(text)
        return
    try:
        write_whole(out, text.encode("utf-8", "backslashreplace"), 0o600)
    except OSError as error:
        why = f"{out} cannot be written: {error.strerror or error}"
        raise UsageError(why, hint="--out FILE names another place") from None
    output.note(f"{out} is written")
