"""Run a shell command on all nodes, equal answers together.

The text is run by `sh -c` on each node. It gets no input, and it is killed with its process group
at the command timeout or when this program is interrupted.
"""

from __future__ import annotations

import os

import click

from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.nodes import fold, grouped
from clusterctl.output import Output, unreachable_json
from clusterctl.remote import output_groups
from clusterctl.remote.messages.verbs import SHELL_BYTES
from clusterctl.remote.output_groups import Answer, Group
from clusterctl.settings import GroupedCommand, Settings, cluster_command, flag

GRACE_S = 6.0  # for SIGTERM, SIGKILL and the answer after the command's own time is up


class QuotedCommand(GroupedCommand):
    """Says what to quote where words of the shell command are taken for options or a hostfile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # click takes words off it
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            words = [word for word in given if not word.startswith("-")]
            if len(words) < 2 or ctx.resilient_parsing:
                raise
            hint = "COMMAND is one word: clusterctl run 'uname -r' nodes.txt"
            raise UsageError(error.format_message().rstrip("."), hint=hint) from None


@cluster_command(
    "run",
    click.argument("text", metavar="COMMAND"),
    flag("--diff", "as_diff", "The largest group, then what differs."),
    flag("--no-fold", "One line each: `node: line`."),
    cls=QuotedCommand,
    command_s=600.0,
    keeps_answers=True,
    examples="""
  clusterctl run 'uname -r' nodes.txt
  clusterctl run --diff -w 'ml-64-node-[001-024]' 'cat /etc/fstab'""",
)
def command(settings: Settings, output: Output, text: str, as_diff: bool, no_fold: bool) -> int:
    """COMMAND is one word: quote it. Exit code 1 when it failed on a node, 3 when a node could not
    be reached and it failed nowhere.
    """
    # Path.is_file raises for a command that is longer than the name of a file may be.
    if os.path.isfile(text) and not os.access(text, os.X_OK):  # noqa: PTH113
        hint = "the command comes first: clusterctl run 'uname -r' nodes.txt"
        raise UsageError(f"{text} is a file of this folder, not a command", hint=hint)
    cluster, limit_s = settings.cluster(output.sweep), settings.limits.command_s
    args = {"command": text, "timeout_s": limit_s, "max_bytes": SHELL_BYTES}
    results = cluster.ask("shell", args, timeout_s=limit_s + GRACE_S, lease=True)
    answers = [output_groups.read_answer(r.node.name, r.value) for r in results if r.value]
    failed = [answer for answer in answers if not answer.good]
    if output.json:
        by_name = {answer.node: answer.to_json() for answer in answers}
        documents = [
            by_name.get(result.node.name)
            or {"node": result.node.name, "rc": None, "unreachable": unreachable_json(result)}
            for result in results
        ]
        output.document("run", text=text, nodes=documents)
    elif not output.quiet:
        _show(output, answers, as_diff, no_fold)
    _verdict(output, answers, failed, len(results))
    output.connections(results)
    return 1 if failed else 3 if any(result.unreachable for result in results) else 0


def _show(output: Output, answers: list[Answer], as_diff: bool, no_fold: bool) -> None:
    if no_fold:
        for answer in answers:
            for line in output_groups.lines(answer.out):
                output.line(f"{answer.node}: {line}")
        errors = [(answer.node, answer.err) for answer in answers]
    else:
        _show_groups(output, output_groups.group(answers), as_diff)
        errors = output_groups.group_errors(answers)
    for names, text in errors:
        for line in output_groups.lines(text):
            output.warn(f"{names}: {line}")
    if output.verbose:
        noises = grouped((answer.noise, answer.node) for answer in answers if answer.noise)
        for noise, nodes in noises.items():
            output.note(f"{fold(nodes)}: the shell says at its start: {noise}", "dim")


def _show_groups(output: Output, groups: list[Group], as_diff: bool) -> None:
    if as_diff:
        groups = output_groups.majority_first(groups)
    for index, one in enumerate(groups):
        if as_diff and index:
            for line in output_groups.diff(groups[0], one):
                output.line(line, {"+": "good", "-": "bad", "@": "dim"}.get(line[:1]))
            continue
        style = "bold" if one.first.good else "bad"
        output.line(f"== {one.title(timings=output.verbose > 0)}", style)
        for line in output_groups.lines(one.first.out):
            output.line(line)


def _verdict(output: Output, answers: list[Answer], failed: list[Answer], total: int) -> None:
    """One line: on how many nodes it went well, and how it ended elsewhere."""
    if not failed and not output.quiet:
        return
    endings = grouped((answer.ending, answer.node) for answer in failed)
    words = [f"{len(answers) - len(failed)} of {counted(total, 'node')} ok"]
    words += [f"{fold(names)}: {ending}" for ending, names in endings.items()]
    output.summary("; ".join(words), len(failed))
