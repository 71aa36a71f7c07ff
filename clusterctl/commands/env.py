"""Print the NCCL environment that fits these nodes, as lines for the shell."""

from __future__ import annotations

import click

from clusterctl.output import Output
from clusterctl.settings import Settings, cluster_command, option

DEVICE = "What ranks will compute on; auto: cuda where any node has a GPU."


@cluster_command(
    "env",
    option("--device", DEVICE, type=click.Choice(["auto", "cuda", "cpu"]), default="auto"),
    examples="""
  clusterctl env nodes.txt
  eval "$(clusterctl env nodes.txt)"
  clusterctl launch stage1 nodes.txt --env-from-facts""",
)
def command(settings: Settings, output: Output, device: str) -> int:
    """stdout has `export NAME=value` lines only; reasons, and nodes that disagree, go to stderr.
    Exit code 1 when nodes disagree, 3 when a node or something about it could not be found out.
    """
    from clusterctl.fabric.collect import collect_fabric, no_answers, suggestions
    from clusterctl.fabric.report import quote, suggestion_json, suggestion_lines, unsure_lines

    cluster = settings.cluster(output.sweep)
    nodes = cluster.nodes
    facts, results = collect_fabric(cluster)
    suggested = suggestions(nodes, facts, device)
    if not suggested:
        raise no_answers(results)
    is_unsure = any(one.unsure for one in suggested) or any(one.unreachable for one in results)
    code = 1 if any(one.odd for one in suggested) else 3 if is_unsure else 0
    known = {one.name: one.value for one in suggested if one.value is not None}
    if output.json:
        variables = [suggestion_json(one) for one in suggested]
        names = [node.name for node in nodes]
        output.document("env", env=known, variables=variables, nodes=names, exit_code=code)
    else:
        for name, value in known.items():
            output.line(f"export {name}={quote(value)}")
        for line, kind in suggestion_lines(suggested):
            if kind == "odd":
                output.warn(line, "bad")  # a shell that evals this must show it, also with -q
            else:
                output.note(f"# {line}", "dim")
        for line in unsure_lines(suggested):
            output.warn(line, "warn")
    output.connections(results)
    return code
