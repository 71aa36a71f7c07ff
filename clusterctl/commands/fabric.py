"""Show InfiniBand and RoCE ports of all nodes, and what NCCL should use of them.

Counters are read twice and compared with those of the previous run: only growth means anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import NO_FOLD, NO_RECORD, Settings, cluster_command, flag, option

if TYPE_CHECKING:
    from checks.facts import NodeFacts
    from clusterctl.fabric.report import FabricReport

COLUMNS = ["NODE", "ACTIVE", "PORTS", "GB/S", "NAMES", "FIRMWARE", "ERRORS", "FLAGS"]
PORT_COLUMNS = ["NODE", "PORT", "STATE", "LAYER", "GB/S", "INTERFACE", "LID"]
PORT_COLUMNS += ["MODEL", "FIRMWARE", "ERRORS"]
GROWTH = "Seconds between the two reads of the error counters."
SHOWN = ("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME")


@cluster_command(
    "fabric",
    option("--growth", "growth_s", GROWTH, type=Duration(0, 60), default=1.0),
    flag("--sudo", "Try `sudo -n`, which never asks, for the kernel's log with its lost links."),
    NO_FOLD,
    NO_RECORD,
    keeps_answers=True,
    examples="""
  clusterctl fabric nodes.txt
  clusterctl fabric --growth 10 -v -w 'ml-64-node-[001-008]'""",
)
def command(
    settings: Settings, output: Output, growth_s: float, sudo: bool, no_fold: bool, no_history: bool
) -> int:
    """With -v each port has a line. Exit code 1 when a port is down that is up elsewhere, errors
    grow or nodes disagree, 3 when a node or something about it could not be found out.
    """
    from clusterctl.fabric.collect import collect_fabric, suggestions, without_hardware
    from clusterctl.fabric.report import report_fabric, to_document

    cluster = settings.cluster(output.sweep)
    facts, results = collect_fabric(cluster, growth_s=growth_s, sudo=sudo, memory=not no_history)
    device = "cpu" if without_hardware(facts) else "cuda"
    suggested = [one for one in suggestions(cluster.nodes, facts, device) if one.name in SHOWN]
    report = report_fabric(facts, suggested)
    if output.json:
        output.document("fabric", **to_document(report, facts))
    else:
        if not output.quiet:
            _show(output, report, facts, no_fold)
        output.summary(report.summary(), report.exit_code)
    output.connections(results)
    return report.exit_code


def _show(
    output: Output, report: FabricReport, facts: tuple[NodeFacts, ...], no_fold: bool
) -> None:
    from clusterctl.fabric.report import port_lines, suggestion_lines, unsure_lines

    rows = [(row.node, row) for row in report.rows] if no_fold else report.folded()
    cells = [(names, row.verdict, row.cells()) for names, row in rows]
    output.node_table(COLUMNS, cells, ["ACTIVE", "ERRORS"])
    if output.verbose:
        output.line("")
        lines = [line for node in facts for line in port_lines(node)]
        output.table(PORT_COLUMNS, lines, ["GB/S", "LID"])
    output.line("")
    for line, kind in suggestion_lines(report.suggestions):
        output.line(line, "bad" if kind == "odd" else None)
    for line in unsure_lines(report.suggestions):
        output.note(line, "warn")
