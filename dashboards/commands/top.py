"""Live view of the cluster and of the run; without a terminal, one reading as text.

Watches every node over ssh and the newest run below outputs/. Reads only.
"""

from __future__ import annotations

from typing import Any

import click

from clusterctl.output import Output
from clusterctl.param_types import Number
from clusterctl.settings import FILE, PATH, Settings, cluster_command, flag, option, source_options

REPLAY = "Play a recording or a run directory again, back and forth; connects to nothing."
SPEED = "How many times faster a replay runs. Default: 1, for a run directory 10."
RECORD = "Record all that is shown, for --replay; appends to an existing file."
READONLY = "Remove the key that ends processes. Default: only in a replay and in a browser."
THEME = (
    "Colours: clusterctl, clusterctl-blue-orange (for colour-blind eyes), clusterctl-day,"
    " or one of textual's."
)
PORT = click.IntRange(0, 65535)


@cluster_command(
    "top",
    source_options,
    option("--replay", REPLAY, type=PATH, metavar="FILE"),
    option("--speed", SPEED, type=Number(0.1, 100_000)),
    option("--record", RECORD, type=FILE, metavar="FILE"),
    flag("--once", "One reading as text, then exit."),
    option("--readonly/--no-readonly", READONLY, default=None),
    option("--theme", THEME, metavar="NAME"),
    flag("--web", "The same screens in a browser: pip install '.[web]'."),
    option("--host", "Address that --web listens on.", default="127.0.0.1"),
    option("--port", "Port of --web; 0 takes a free one.", type=PORT, default=8000),
    examples="""
  clusterctl top nodes.txt
  clusterctl top nodes.txt --record night.rec
  clusterctl top --replay night.rec --speed 60
  clusterctl top --demo --web --theme clusterctl-blue-orange""",
)
def command(settings: Settings, output: Output, **options: Any) -> int:
    """One reading ends with 0 when all is well, 1 when a GPU is missing or odd or the run failed or
    stalls, 3 when a node could not be asked. The screens end with 0 after q and after Ctrl-C.
    """
    from dashboards.tui.top import top

    return top(settings, output, **options)
