"""Run a shell command on all nodes, equal answers together.

The text is run by `sh -c` on each node. It gets no input, and it is killed with its process group
at the command timeout or when this program is interrupted.
"""

from __future__ import annotations

import click

from clusterctl.nodes import counted, fold
from clusterctl.output import Output, unreachable_json
from clusterctl.remote import output_groups as gather
from clusterctl.remote.fanout import in_order
from clusterctl.remote.messages.verbs import SHELL_BYTES
from clusterctl.settings import Settings, cluster_options, output_options

GRACE_S = 6.0  # for SIGTERM, SIGKILL and the way home after the command's own time is up


@click.command(
    "run",
    epilog="""\b
Examples:
  clusterctl run 'uname -r' nodes.txt
  clusterctl run --diff -w 'ml-64-node-[001-024]' 'cat /etc/fstab'""",
)
@click.argument("text", metavar="COMMAND")
@click.option("--diff", "as_diff", is_flag=True, help="The largest group, then what differs.")
@click.option("--no-fold", is_flag=True, help="One line each: `node: line`.")
@cluster_options
@output_options
def command(settings: Settings, output: Output, text: str, as_diff: bool, no_fold: bool) -> int:
    """Run a shell command on all nodes, equal answers together.

    COMMAND is one word: quote it. Exit code 1 when it failed on a node, 3 when a node could not
    be reached and it failed nowhere.
    """
    from clusterctl.remote.run_payload import ask

    nodes = settings.nodes()
    limits = settings.limits
    arguments = {"command": text, "timeout_s": limits.command_s, "max_bytes": SHELL_BYTES}
    sweep = ask(
        nodes,
        settings.transport(),
        "shell",
        arguments,
        limits=limits,
        width=settings.width,
        timeout_s=limits.command_s + GRACE_S,
        lease=True,
    )
    results = in_order(nodes, list(output.sweep(sweep, len(nodes))))
    answers = [
        gather.read_answer(result.node.name, result.value) for result in results if result.value
    ]
    dead = [result for result in results if result.unreachable]
    failed = [answer for answer in answers if not answer.good]

    if output.json:
        by_name = {answer.node: answer.to_json() for answer in answers}
        output.document(
            "run",
            text=text,
            nodes=[
                by_name.get(result.node.name)
                or {"node": result.node.name, "rc": None, "unreachable": unreachable_json(result)}
                for result in results
            ],
        )
    elif not output.quiet:
        _show(output, answers, as_diff, no_fold)
    _verdict(output, answers, failed, len(nodes))
    output.ways(results)
    output.unreachable(results)
    return 1 if failed else 3 if dead else 0


def _show(output: Output, answers: list[gather.Answer], as_diff: bool, no_fold: bool) -> None:
    if no_fold:
        for answer in answers:
            for line in gather.lines(answer.out):
                output.line(f"{answer.node}: {line}")
        errors = [(answer.node, answer.err) for answer in answers]
    else:
        _show_groups(output, gather.group(answers), as_diff)
        errors = gather.group_errors(answers)
    for names, text in errors:
        for line in gather.lines(text):
            output.warn(f"{names}: {line}")
    if output.verbose:
        for noise in dict.fromkeys(answer.noise for answer in answers if answer.noise):
            names = fold([answer.node for answer in answers if answer.noise == noise])
            output.note(f"{names}: the shell says at its start: {noise}", "dim")


def _show_groups(output: Output, groups: list[gather.Group], as_diff: bool) -> None:
    if as_diff:
        groups = gather.majority_first(groups)
    for index, one in enumerate(groups):
        if as_diff and index:
            for line in gather.diff(groups[0], one):
                output.line(line, {"+": "good", "-": "bad", "@": "dim"}.get(line[:1]))
            continue
        style = "bold" if one.first.good else "bad"
        output.line(f"== {one.title(timings=output.verbose > 0)}", style)
        for line in gather.lines(one.first.out):
            output.line(line)


def _verdict(
    output: Output, answers: list[gather.Answer], failed: list[gather.Answer], total: int
) -> None:
    """One line: how it went on how many nodes; on stdout under -q, where it is the only output."""
    if not failed and not output.quiet:
        return
    endings: dict[str, list[str]] = {}
    for answer in failed:
        endings.setdefault(answer.ending(), []).append(answer.node)
    words = [f"{len(answers) - len(failed)} of {counted(total, 'node')} ok"]
    words += [f"{fold(names)}: {ending}" for ending, names in endings.items()]
    if output.quiet and not output.json:
        output.line("; ".join(words))
    else:
        output.note("; ".join(words), "bad")
