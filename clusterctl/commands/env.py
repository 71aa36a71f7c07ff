"""Print the NCCL environment that fits these nodes, as lines for the shell.

Worked out from cards, network, GPUs and CPUs of all nodes; nothing is guessed.
"""

from __future__ import annotations

import re

import click

from clusterctl.output import Output
from clusterctl.settings import Settings, cluster_options, output_options


@click.command(
    "env",
    epilog="""\b
Examples:
  clusterctl env nodes.txt
  eval "$(clusterctl env nodes.txt)"
  clusterctl launch stage1 nodes.txt --env-from-facts""",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="What ranks will compute on; auto: cuda where any node has a GPU.",
)
@cluster_options
@output_options
def command(settings: Settings, output: Output, device: str) -> int:
    """Print the NCCL environment that fits these nodes, as lines for the shell.

    stdout has `export NAME=value` lines only; reasons, and nodes that disagree, go to stderr. Exit
    code 1 when nodes disagree, 3 when a node or something about it could not be found out.
    """
    from clusterctl.fabric.collect import collect_fabric, no_answers, suggestions
    from clusterctl.fabric.report import suggestion_json, suggestion_lines, unsure_lines

    nodes = settings.nodes()
    facts, results = collect_fabric(
        nodes,
        settings.transport(),
        settings.limits,
        width=settings.width,
        growth_s=0.0,
        sweep=output.sweep,
    )
    suggested = suggestions(nodes, facts, device)
    if not suggested:
        raise no_answers(results)
    odd = [one for one in suggested if one.odd]
    unsure = [one for one in suggested if one.unsure]
    silent = any(result.unreachable for result in results)
    code = 1 if odd else 3 if unsure or silent else 0
    if output.json:
        output.document(
            "env",
            env={one.name: one.value for one in suggested if one.value is not None},
            variables=[suggestion_json(one) for one in suggested],
            nodes=[node.name for node in nodes],
            exit_code=code,
        )
    else:
        for one in suggested:
            if one.value is not None:
                output.line(f"export {one.name}={quote(one.value)}")
        for line, kind in suggestion_lines(suggested):
            if kind == "odd":
                output.warn(line, "bad")  # a shell that evals this must see it, also with -q
            else:
                output.note(f"# {line}", "dim")
        for line in unsure_lines(suggested):
            output.warn(line, "warn")
    output.ways(results)
    output.unreachable(results)
    return code


def quote(value: str) -> str:
    """A word for any shell.

    shlex.quote leaves a `=` at the start bare, and zsh then looks for a program.
    """
    if re.fullmatch(r"[A-Za-z0-9_.]+", value):
        return value
    return "'" + value.replace("'", "'\"'\"'") + "'"
