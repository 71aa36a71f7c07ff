"""List the nodes of the hostfile, folded or one a line.

Checks the hostfile on the way; connects to nothing.
"""

from __future__ import annotations

import click

from clusterctl.nodes import counted, expand, fold
from clusterctl.output import Output
from clusterctl.settings import Settings, cluster_options, output_options


@click.command(
    "nodes",
    epilog="""\b
Examples:
  clusterctl nodes nodes.txt
  clusterctl nodes --expand 'ml-64-node-[001-003]'""",
)
@click.option("--expand", "to_expand", metavar="SET", help="Print the names of a node set.")
@click.option("--fold", "to_fold", is_flag=True, help="Print the chosen nodes as one node set.")
@cluster_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, settings: Settings, output: Output, to_expand: str | None, to_fold: bool
) -> None:
    """List the nodes of the hostfile, folded or one a line."""
    if to_expand:
        for name in expand(to_expand, "--expand"):
            output.line(name)
        return
    nodes = settings.nodes()
    if output.json:
        output.document(
            "nodes",
            hostfile=str(settings.hostfile),
            nodes=[
                {
                    "name": node.name,
                    "host": node.host,
                    "port": node.port,
                    "user": node.user,
                    "slots": node.slots,
                    "identity": node.identity,
                    "labels": dict(node.labels),
                }
                for node in nodes
            ],
        )
        return
    if to_fold:
        output.line(fold([node.name for node in nodes]))
        return
    output.table(
        ["NODE", "ADDRESS", "PORT", "USER", "SLOTS"],
        [
            [
                node.name,
                node.address,
                str(node.port or "-"),
                node.user or "-",
                str(node.slots or "-"),
            ]
            for node in nodes
        ],
        right=["PORT", "SLOTS"],
    )
    output.note(f"{counted(len(nodes), 'node')} in {settings.hostfile}")
    if output.verbose:
        for name in ctx.params:
            source = ctx.get_parameter_source(name)
            if source is not None:
                output.note(f"  {name} = {ctx.params[name]!r} ({source.name.lower()})", "dim")
