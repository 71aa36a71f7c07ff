"""Where a run stands: its step, nodes, restarts and supervisor."""

from __future__ import annotations

import click

from clusterctl.output import Output
from clusterctl.settings import output_options


@click.command(
    "status",
    epilog="""\b
Examples:
  clusterctl status
  clusterctl status 3 --json""",
)
@click.argument("run", required=False)
@output_options
def command(output: Output, run: str | None) -> int:
    """Where a run stands: its step, nodes, restarts and supervisor.

    RUN is a run directory, its number or its name below outputs/. Default: the newest.

    A running one is asked through its supervisor; where that has gone, through the agents on
    its nodes. Exit code 1 of a run that ended badly, or that waits to be started again; 3 where
    that is unknown.
    """
    from clusterctl.launch.head.status import read_status
    from clusterctl.runs.find import find_run

    run_dir = find_run(run)
    with output.waiting(f"reading {run_dir}"):
        found = read_status(run_dir)
    if output.json:
        output.document("status", **found.to_json())
        return found.exit_code
    for line, style in found.lines():
        output.line(line, style)
    return found.exit_code
