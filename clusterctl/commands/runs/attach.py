"""Show a run that goes on without this terminal, to its end."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.output import Output
from clusterctl.settings import PATH, output_options


@click.command(
    "attach",
    epilog="""\b
Examples:
  clusterctl attach outputs/003-STDiT3-XL-2""",
)
@click.argument("run", metavar="RUN", type=PATH)
@output_options
def command(output: Output, run: Path) -> int:
    """Show a run that goes on without this terminal, to its end.

    Ctrl-C asks whether to detach or to stop it. Where the run's supervisor has gone, with its
    machine or by a signal, a new one takes the run over from its agents: nothing is started twice.
    """
    from clusterctl.launch.head.session import attach

    return attach(run.absolute(), output)
