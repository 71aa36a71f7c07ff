"""Show a run that continues without this terminal, to its end."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.output import Output
from clusterctl.settings import flag, output_options

ALL = "Every run of outputs/, or of the folder RUN, that continues; returns as --detach does: "
ALL += "for a crontab."


@click.command(
    "attach",
    epilog="""\b
Examples:
  clusterctl attach
  clusterctl attach 3
  clusterctl attach --all""",
)
@click.argument("run", required=False)
@flag("--detach", "Return as soon as the run is supervised.")
@flag("--all", "every", ALL)
@output_options
def command(output: Output, run: str | None, detach: bool, every: bool) -> int:
    """Show a run that continues without this terminal, to its end.

    RUN is a run directory, its number or its name below outputs/. Default: the newest.

    Ctrl-C asks whether to detach or to stop it; in a script it ends only this command. Where the
    run's supervisor has gone, with its machine or by a signal, a new one takes the run over from
    its agents: nothing is started twice.
    """
    from clusterctl.launch.head.session import attach, attach_all
    from clusterctl.runs.find import OUTPUTS, find_run

    if every:
        return attach_all(OUTPUTS if run is None else Path(run), output)
    return attach(find_run(run).absolute(), output, detach=detach)
