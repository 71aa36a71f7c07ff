"""Show GPUs, processes, power and memory of each node.

What is missing, broken, hung or dead stands in its node's line as what it is.
"""

from __future__ import annotations

import click

from clusterctl.render import Cell, Output
from clusterctl.settings import Settings, cluster_options, output_options

COLUMNS = ["NODE", "GPUS", "PROC", "POWER", "UTIL", "MEM", "FLAGS"]
STYLES = {"good": None, "bad": "bad", "unknown": "warn"}


@click.command(
    "gpus",
    epilog="""\b
Examples:
  clusterctl gpus nodes.txt
  clusterctl gpus --json -w 'ml-64-node-[001-008]'""",
)
@click.option("--no-fold", is_flag=True, help="One line for each node, also for equal ones.")
@cluster_options
@output_options
def command(settings: Settings, output: Output, no_fold: bool) -> int:
    """Show GPUs, processes, power and memory of each node.

    POWER and UTIL are means over the GPUs of a node. Exit code 1 when a GPU is missing against
    the other nodes or a driver fails, 3 when a node or its nvidia-smi gave no answer.
    """
    from clusterctl.census import read_fleet, take_census, to_document
    from clusterctl.fanout import in_order
    from clusterctl.payload.ask import ask, tool_timeout

    nodes = settings.nodes()
    arguments = {"tool_timeout_s": tool_timeout(settings.limits)}
    sweep = ask(
        nodes, settings.transport(), "census", arguments,
        limits=settings.limits, width=settings.width,
    )  # fmt: skip
    results = in_order(nodes, list(output.sweep(sweep, len(nodes))))
    facts = read_fleet(results)
    census = take_census(facts)
    if output.json:
        output.document("gpus", **to_document(census, facts))
    elif output.quiet:
        output.line(census.summary(), None if census.exit_code == 0 else "bad")
    else:
        rows = [(row.node, row) for row in census.rows] if no_fold else census.folded()
        output.table(
            COLUMNS,
            [[Cell(names), *(Cell(c, STYLES[row.verdict]) for c in row.cells())] for names, row in rows],
            right=COLUMNS[1:-1],
        )  # fmt: skip
        output.note(census.summary())
    for node in facts:
        if output.verbose and node.gpus.message != node.gpus.summary:
            output.note(f"{node.name}: {node.gpus.message}", "dim")
    output.ways(results)
    output.unreachable(results)
    return census.exit_code
