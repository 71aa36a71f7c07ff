"""Print alerts as they begin and end, without screens.

For a log, a service, a pager: the rules of the live view, with an exit code and a hook.
"""

from __future__ import annotations

from typing import Any

import click

from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import FILE, PATH, Settings, cluster_command, flag, option, source_options

REPLAY = "A recording or a run directory instead of now, without waiting."
RECORD = "Also record all readings, for top --replay FILE."
FOR = "How long: 90, 10m, 8h. Default: until Ctrl-C or SIGTERM."
CHECK = "Only these alerts or subjects: gpu,clock.step. (--only names nodes.)"
SEVERITY = "Lowest severity that is reported and counts for the exit code."
EXEC = "Run for each alert with it as JSON on stdin. Words, no shell."
TIMEOUT = "Seconds for one run of --exec, then it is killed."


@cluster_command(
    "watch",
    source_options,
    option("--replay", REPLAY, type=PATH, metavar="PATH"),
    option("--record", RECORD, type=FILE, metavar="FILE"),
    option("--for", "for_s", FOR, type=Duration(0, min_open=True)),
    flag("--once", "A few readings, then exit."),
    option("--check", "wanted", CHECK, metavar="IDS"),
    option("--skip", "skipped", "Leave these alerts or subjects out.", metavar="IDS"),
    option("--severity", SEVERITY, type=click.Choice(["warn", "fail"]), default="warn"),
    option("--exec", "hook", EXEC, metavar="CMD"),
    option("--exec-timeout", "hook_timeout", TIMEOUT, type=Duration(0.1), default=10.0),
    flag("--list", "list_all", "All alerts with their limits; watches nothing."),
    json="JSON lines on stdout, one for each alert that begins, becomes worse or ends.",
    examples="""
  clusterctl watch nodes.txt --for 10m
  clusterctl watch nodes.txt --json --severity fail --exec './page-me --team gpu'""",
)
def command(settings: Settings, output: Output, list_all: bool, **options: Any) -> int:
    """A line when an alert begins, with the command to type next, and one when it ends; --json
    prints JSON lines. Exit code 1 when any began, 3 when a node gave no readings and nothing worse,
    else 130 after Ctrl-C and 0 after SIGTERM. docs/reference/alerts.md has the list.
    """
    from dashboards.watch.lines import show_rules, watch

    if list_all:
        show_rules(output)
        return 0
    return watch(settings, output, **options)
