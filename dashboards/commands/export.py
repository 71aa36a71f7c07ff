"""Serve metrics of nodes, run and alerts to Prometheus.

On this machine only by default; with the board for Grafana and the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterctl.errors import UsageError
from clusterctl.output import Output
from clusterctl.settings import Settings, cluster_command, option, source_options

FOLDER = Path(__file__).parents[1] / "export"
PRINTED = {"board": FOLDER / "clusterctl.json", "rules": FOLDER / "clusterctl-alerts.yml"}
PRINT = "The Grafana board or Prometheus' alerting rules on stdout; exports nothing."


@cluster_command(
    "export",
    option(
        "--listen",
        "Where Prometheus finds the metrics. Port 0: any free one.",
        default="127.0.0.1:9839",
        metavar="ADDRESS:PORT",
    ),
    option(
        "--once",
        "Write them once, whole or not at all, for node_exporter's textfile collector;"
        " - is stdout.",
        metavar="FILE",
    ),
    option("--print", "printed", PRINT, type=click.Choice([*PRINTED])),
    source_options,
    json="",
    examples="""
  clusterctl export nodes.txt --listen 127.0.0.1:9839
  clusterctl export nodes.txt --once /var/lib/prometheus/node-exporter/clusterctl.prom""",
)
def command(settings: Settings, output: Output, printed: str | None, **options: Any) -> int:
    """What is not known has no sample; it is never 0. Exit code 130 after Ctrl-C, 0 after SIGTERM;
    with --once 3 when a node gave no readings (the file is written). docs/guide/alerts.md shows the
    set-up.
    """
    if output.json:
        raise UsageError(
            "export speaks Prometheus' format",
            hint="clusterctl watch --json has alerts, top --json figures",
        )
    if printed:
        output.lines(PRINTED[printed].read_text(encoding="utf-8"))
        return 0
    from dashboards.export.serve import export

    return export(settings, output, **options)
