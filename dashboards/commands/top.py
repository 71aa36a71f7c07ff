"""Live view of the cluster and of the run; without a terminal, one look as text.

Watches every node over ssh and the newest run below outputs/. Reads only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterctl.output import Output
from clusterctl.param_types import Number
from clusterctl.settings import Settings, cluster_options, output_options, source_options


@click.command(
    "top",
    epilog="""\b
Examples:
  clusterctl top nodes.txt
  clusterctl top nodes.txt --record night.rec
  clusterctl top --replay night.rec --speed 60
  clusterctl top --demo --web --theme clusterctl-blue-orange""",
)
@source_options
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Play a recording or a run directory again, back and forth; connects to nothing.",
)
@click.option(
    "--speed",
    type=Number(0.1, 100_000),
    help="How many times faster a replay runs. Default: 1, for a run directory 10.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Record all that is shown, for --replay; appends to an existing file.",
)
@click.option("--once", is_flag=True, help="One look as text, then exit.")
@click.option(
    "--readonly/--no-readonly",
    default=None,
    help="Take away what ends processes. Default: only in a replay and in a browser.",
)
@click.option(
    "--theme",
    metavar="NAME",
    help="Colours: clusterctl, clusterctl-blue-orange (for colour-blind eyes), clusterctl-day,"
    " or one of textual's.",
)
@click.option(
    "--web", is_flag=True, help="The same screens in a browser: pip install 'clusterctl[web]'."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address that --web listens on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port of --web; 0 takes a free one.",
)
@cluster_options
@output_options
def command(settings: Settings, output: Output, **options: Any) -> int:
    """Live view of the cluster and of the run; without a terminal, one look as text.

    One look ends with 0 when all is well, 1 when a GPU is missing or odd or the run failed or
    stalls, 3 when a node could not be asked.
    """
    from dashboards.tui.top import top

    return top(settings, output, **options)
