"""Show a run that continues without this terminal, to its end."""

from __future__ import annotations

import click

from clusterctl.output import Output
from clusterctl.settings import flag, output_options


@click.command(
    "attach",
    epilog="""\b
Examples:
  clusterctl attach
  clusterctl attach 3
  clusterctl attach --detach""",
)
@click.argument("run", required=False)
@flag("--detach", "Return as soon as the run is supervised: for a crontab.")
@output_options
def command(output: Output, run: str | None, detach: bool) -> int:
    """Show a run that continues without this terminal, to its end.

    RUN is a run directory, its number or its name below outputs/. Default: the newest.

    Ctrl-C asks whether to detach or to stop it. Where the run's supervisor has gone, with its
    machine or by a signal, a new one takes the run over from its agents: nothing is started twice.
    """
    from clusterctl.launch.head.session import attach
    from clusterctl.runs.find import find_run

    return attach(find_run(run).absolute(), output, detach=detach)
