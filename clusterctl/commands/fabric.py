"""Show InfiniBand and RoCE ports of all nodes, and what NCCL should use of them.

Counters are read twice, and compared with the last look's record: only their growth says something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterctl.output import Cell, Output
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, cluster_options, output_options

if TYPE_CHECKING:
    from checks.facts import NodeFacts
    from clusterctl.fabric.report import FabricReport

COLUMNS = ["NODE", "ACTIVE", "PORTS", "GB/S", "NAMES", "FIRMWARE", "ERRORS", "FLAGS"]
PORT_COLUMNS = [
    "NODE",
    "PORT",
    "STATE",
    "LAYER",
    "GB/S",
    "INTERFACE",
    "LID",
    "MODEL",
    "FIRMWARE",
    "ERRORS",
]
STYLES = {"good": None, "bad": "bad", "unknown": "warn"}


@click.command(
    "fabric",
    epilog="""\b
Examples:
  clusterctl fabric nodes.txt
  clusterctl fabric --growth 10 -v -w 'ml-64-node-[001-008]'""",
)
@click.option(
    "--growth",
    "growth_s",
    type=Duration(0, 60),
    default=1.0,
    show_default=True,
    help="Seconds between the two reads of the error counters.",
)
@click.option(
    "--sudo",
    is_flag=True,
    help="Try `sudo -n`, which never asks, for the kernel's log with its lost links.",
)
@click.option("--no-fold", is_flag=True, help="One line for each node, also for equal ones.")
@click.option(
    "--no-memory", is_flag=True, help="Neither read nor write the record of the last look."
)
@cluster_options
@output_options
def command(
    settings: Settings, output: Output, growth_s: float, sudo: bool, no_fold: bool, no_memory: bool
) -> int:
    """Show InfiniBand and RoCE ports of all nodes, and what NCCL should use of them.

    With -v each port has a line. Exit code 1 when a port is down that is up elsewhere, errors grow
    or nodes disagree, 3 when a node or something about it could not be found out.
    """
    from clusterctl.fabric.collect import collect_fabric, suggestions
    from clusterctl.fabric.report import report_fabric, to_document

    nodes = settings.nodes()
    facts, results = collect_fabric(
        nodes,
        settings.transport(),
        settings.limits,
        width=settings.width,
        growth_s=growth_s,
        sudo=sudo,
        memory=not no_memory,
        sweep=output.sweep,
    )
    wanted = ("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME")
    suggested = [one for one in suggestions(nodes, facts, "cuda") if one.name in wanted]
    report = report_fabric(facts, suggested)
    if output.json:
        output.document("fabric", **to_document(report, facts))
    elif output.quiet:
        output.line(report.summary(), None if report.exit_code == 0 else "bad")
    else:
        _show(output, report, facts, no_fold)
    output.ways(results)
    output.unreachable(results)
    return report.exit_code


def _show(
    output: Output, report: FabricReport, facts: tuple[NodeFacts, ...], no_fold: bool
) -> None:
    from clusterctl.fabric.report import port_lines, suggestion_lines, unsure_lines

    rows = [(row.node, row) for row in report.rows] if no_fold else report.folded()
    output.table(
        COLUMNS,
        [
            [Cell(names), *(Cell(c, STYLES[row.verdict]) for c in row.cells())]
            for names, row in rows
        ],
        right=["ACTIVE", "ERRORS"],
    )
    if output.verbose:
        output.line("")
        output.table(
            PORT_COLUMNS, [line for node in facts for line in port_lines(node)], ["GB/S", "LID"]
        )
    output.line("")
    for line, kind in suggestion_lines(report.suggestions):
        output.line(line, "bad" if kind == "odd" else None)
    for line in unsure_lines(report.suggestions):
        output.note(line, "warn")
    output.note(report.summary(), None if report.exit_code == 0 else "bad")
