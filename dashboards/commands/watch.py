"""Print alerts as they begin and end, without screens.

For a log, a service, a pager: the rules of the live view, with an exit code and a hook.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, cluster_options, output_options, source_options


@click.command(
    "watch",
    epilog="""\b
Examples:
  clusterctl watch nodes.txt --for 10m
  clusterctl watch nodes.txt --json --severity fail --exec './page-me --team gpu'""",
)
@source_options
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A recording or a run directory instead of now, without waiting.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write down everything, for top --replay FILE in the morning.",
)
@click.option(
    "--for",
    "for_s",
    type=Duration(0, min_open=True),
    help="How long: 90, 10m, 8h. Default: until Ctrl-C or SIGTERM.",
)
@click.option("--once", is_flag=True, help="One look of some readings, then exit.")
@click.option(
    "--check",
    "wanted",
    metavar="IDS",
    help="Only these alerts or subjects: gpu,clock.step. (--only names nodes.)",
)
@click.option("--skip", "skipped", metavar="IDS", help="Leave these alerts or subjects out.")
@click.option(
    "--severity",
    type=click.Choice(["warn", "fail"]),
    default="warn",
    show_default=True,
    help="The least that is told and counts for the exit code.",
)
@click.option(
    "--exec",
    "hook",
    metavar="CMD",
    help="Run for each alert with it as JSON on stdin. Words, no shell.",
)
@click.option(
    "--exec-timeout",
    "hook_timeout",
    type=Duration(0.1),
    default=10.0,
    show_default=True,
    help="Seconds for one run of --exec, then it is killed.",
)
@click.option(
    "--list", "list_all", is_flag=True, help="All alerts with their limits; watches nothing."
)
@cluster_options
@output_options
def command(settings: Settings, output: Output, list_all: bool, **options: Any) -> int:
    """Print alerts as they begin and end, without screens.

    A line when an alert begins, with the command to type next, and one when it ends; --json prints
    JSON lines. Exit code 1 when any began, 3 when a node gave no readings and nothing worse, 130
    after Ctrl-C, 0 after SIGTERM. docs/reference/alerts.md has the list.
    """
    if list_all:
        from dashboards.alerts import docs_table

        docs_table.show(output)
        return 0
    from dashboards.watch.lines import watch

    return watch(settings, output, **options)
