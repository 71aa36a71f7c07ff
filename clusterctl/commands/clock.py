"""Compare the clocks of all nodes, and see who steers them.

Offsets come from exchanges over the open ssh channel, with their error bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import UsageError
from clusterctl.output import Cell, Output
from clusterctl.param_types import Duration, Number
from clusterctl.settings import Settings, cluster_options, output_options

if TYPE_CHECKING:
    from checks.facts import NodeFacts
    from clusterctl.clocks.report import Clocks
    from clusterctl.nodes import Node

COLUMNS = ["NODE", "OFFSET", "±", "STEP", "STEERED BY", "SOURCES", "FLAGS"]
STYLES = {"good": None, "bad": "bad", "unknown": "warn"}
MOST_PAIRS = 20


@click.command(
    "clock",
    epilog="""\b
Examples:
  clusterctl clock nodes.txt
  clusterctl clock --watch --for 600 -w 'ml-64-node-[001-024]'""",
)
@click.option(
    "--limit",
    "limit_ms",
    type=Number(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Milliseconds from the others, beyond the error bound, that are too many.",
)
@click.option("--pairs", is_flag=True, help="Also each node against each other one, widest first.")
@click.option("--watch", is_flag=True, help="Go on measuring; say at once when a clock is stepped.")
@click.option(
    "--interval",
    "interval_s",
    type=Duration(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@click.option(
    "--for",
    "for_s",
    type=Duration(0, min_open=True),
    help="Seconds to watch. Default: until Ctrl-C.",
)
@click.option("--no-fold", is_flag=True, help="One line for each node, also for equal ones.")
@click.option(
    "--no-memory", is_flag=True, help="Neither read nor write the record of the last look."
)
@cluster_options
@output_options
def command(settings: Settings, output: Output, **options: Any) -> int:
    """Compare the clocks of all nodes, and see who steers them.

    OFFSET is against this machine, STEP how far wall time moved against boot time while we looked
    and since the last look. Exit code 1 when a clock is too far from the others, was stepped or is
    not steered as it should be, 3 when a node gave no answer.
    """
    from dataclasses import replace

    from checks.profile import Profile

    if options["for_s"] and not options["watch"]:
        raise UsageError("--for goes with --watch")
    if options["watch"] and options["pairs"]:
        raise UsageError("--pairs is for a single look: leave --watch or --pairs out")
    limits = replace(Profile(), clock_skew_warn_s=options["limit_ms"] / 1000)
    if options["watch"]:
        from clusterctl.clocks.monitor import show

        return show(settings, output, limits, options["interval_s"], options["for_s"])
    nodes = settings.nodes()
    clocks, facts, results = _look(settings, output, nodes, limits, not options["no_memory"])
    if output.json:
        from clusterctl.clocks.report import to_document

        output.document("clock", **to_document(clocks, facts, options["pairs"]))
    elif output.quiet:
        output.line(clocks.summary(), None if clocks.exit_code == 0 else "bad")
    else:
        _show(output, clocks, facts, no_fold=options["no_fold"], pairs=options["pairs"])
    output.ways(results)
    output.unreachable(results)
    return clocks.exit_code


def _look(
    settings: Settings, output: Output, nodes: list[Node], limits: Any, memory: bool
) -> tuple[Clocks, tuple[NodeFacts, ...], list[Any]]:
    import time
    from pathlib import Path

    from clusterctl.clocks.exchange import HeadClock, collect_clocks
    from clusterctl.clocks.report import judge, read_clocks
    from clusterctl.preflight import last_census as history
    from clusterctl.remote.fanout import in_order

    head = HeadClock()
    sweep = collect_clocks(nodes, settings.transport(), settings.limits, head, width=settings.width)
    results = in_order(nodes, list(output.sweep(sweep, len(nodes))))
    # A file of its own: preflight's record has the error counters beside the clock.
    path = history.default_path().with_name("last-clock.json")
    seen = history.load(path) if memory else {}
    before = {node.name: history.previous(seen, node, time.time()) for node in nodes}
    facts = read_clocks(results, before)
    if memory:
        problem = history.remember(path, seen, zip(nodes, facts, strict=True))
        if problem is not None:
            output.warn(f"the record for the next look cannot be written: {problem}")
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = None
    clocks = judge(facts, limits, head_boot_id=boot_id, head_moved_s=head.moved_s())
    return clocks, facts, results


def _show(
    output: Output, clocks: Clocks, facts: tuple[NodeFacts, ...], *, no_fold: bool, pairs: bool
) -> None:
    from checks.facts import Clock
    from clusterctl.clocks.report import all_pairs, cells, folded, signed, span

    groups = [(row.node, [row]) for row in clocks.rows] if no_fold else folded(clocks)
    output.table(
        COLUMNS,
        [
            [Cell(names), *(Cell(c, STYLES[rows[0].verdict]) for c in cells(rows))]
            for names, rows in groups
        ],
        right=COLUMNS[1:4],
    )
    if pairs:
        every = all_pairs(clocks)
        output.line("")
        output.table(
            ["A", "B", "A IS AHEAD BY", "±"],
            [
                [a.node, b.node, signed(apart), span(error)]
                for a, b, apart, error in every[:MOST_PAIRS]
            ],
            right=["A IS AHEAD BY", "±"],
        )
        if len(every) > MOST_PAIRS:
            output.note(f"{len(every) - MOST_PAIRS} nearer pairs are in --json", "dim")
    for node in facts if output.verbose else ():
        if isinstance(node.clock, Clock) and isinstance(node.clock.sources, tuple):
            for one in node.clock.sources:
                offset = signed(one.offset_s) if isinstance(one.offset_s, float) else "-"
                output.note(
                    f"{node.name}: {one.address} {one.state}, stratum {one.stratum}, "
                    f"reach {one.reach:o}, poll {one.poll_s:g} s, we are {offset}",
                    "dim",
                )
    output.note(clocks.summary(), None if clocks.exit_code == 0 else "bad")
