"""Write a page about a run: attempts over time, lost time, losses.

One HTML file, which a browser shows without a server and without other files.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import FILE, option, output_options

NAME = "report.html"
OUT = f"Where to. Default: {NAME} in the run directory; - is stdout."


@click.command(
    "report",
    epilog="""\b
Examples:
  clusterctl report
  clusterctl report outputs/003-STDiT3-XL-2 --out /tmp/run.html""",
)
@click.argument("run", required=False)
@option("--out", OUT, type=FILE, metavar="FILE")
@output_options
def command(output: Output, run: str | None, out: Path | None) -> int:
    """Write a page about a run: attempts over time, lost time, loss.

    RUN is a run directory, or the number or name of one in outputs/; default: the newest. The page
    is of this moment; an earlier one is replaced.
    """
    from clusterctl.runs.find import find_run
    from dashboards.report.page import page, read_run
    from trainer.runlog.atomic_file import write_whole

    run_dir, now_s = find_run(run), time.time()
    with output.waiting(f"reading {run_dir}"):
        text = page(*read_run(run_dir, now_s), now_s)
    if out == Path("-"):
        output.lines(text)
        return 0
    path = out or run_dir / NAME
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace"), 0o600)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(why, hint="--out FILE names another place") from None
    if output.json:
        output.document("report", run=str(run_dir), page=str(path))
    else:
        output.line(str(path))
    return 0
