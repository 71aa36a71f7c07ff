"""List the nodes of the hostfile, folded or one a line."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from clusterctl.exclude.entries import path_beside, read
from clusterctl.nodes import counted, expand, fold
from clusterctl.output import Cell, Output
from clusterctl.settings import Settings, cluster_command, flag, option


@cluster_command(
    "nodes",
    option("--expand", "to_expand", "Print the names of a node set.", metavar="SET"),
    flag("--fold", "to_fold", "Print the chosen nodes as one node set."),
    examples="""
  clusterctl nodes nodes.txt
  clusterctl nodes --expand 'ml-64-node-[001-003]'""",
)
def command(settings: Settings, output: Output, to_expand: str | None, to_fold: bool) -> None:
    if to_expand is not None:
        for name in expand(to_expand, "--expand"):
            output.line(name)
        return
    nodes = settings.nodes()
    now_s, entries = (
        time.time(),
        [] if to_fold and not output.json else read(path_beside(settings.hostfile)),
    )
    held = {entry.node: entry for entry in entries if not entry.is_over(now_s)}
    if output.json:
        out = {entry.node: entry.to_json(is_over=False) for entry in held.values()}
        documents = [
            {**asdict(node), "labels": dict(node.labels), "excluded": out.get(node.name)}
            for node in nodes
        ]
        output.document("nodes", hostfile=str(settings.hostfile), nodes=documents)
        return
    if to_fold:
        output.line(fold([node.name for node in nodes]))
        return
    cells = [(n.name, n.address, n.port, n.user, n.slots) for n in nodes]
    rows: list[list[str | Cell]] = [[str(cell or "-") for cell in row] for row in cells]
    columns = ["NODE", "ADDRESS", "PORT", "USER", "SLOTS"]
    if any(node.name in held for node in nodes):
        columns.append("EXCLUDED")
        for node, row in zip(nodes, rows, strict=True):
            entry = held.get(node.name)
            row.append(Cell(f"{entry.reason}; until {entry.end}", "warn") if entry else "-")
    output.table(columns, rows, ["PORT", "SLOTS"])
    output.note(f"{counted(len(nodes), 'node')} in {settings.hostfile}")
    if output.verbose:
        context = click.get_current_context()
        for name, value in context.params.items():
            source = context.get_parameter_source(name)
            if source is not None:
                output.note(f"  {name} = {value!r} ({source.name.lower()})", "dim")
