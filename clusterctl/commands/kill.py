"""End a job on all nodes, and prove that it is gone.

A node that could not be asked is NOT CONFIRMED, never good.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from clusterctl.errors import UsageError
from clusterctl.nodes import counted
from clusterctl.output import Output, clock
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, cluster_options, output_options, with_options

if TYPE_CHECKING:
    from clusterctl.jobs.kill import Ended
    from clusterctl.jobs.processes import NodeJob, Pick

pick_options = with_options(
    click.option("--run", "runs", multiple=True, metavar="ID", help="This run; repeat it for more. Default: the only run on the nodes."),
    click.option("--match", is_flag=False, flag_value="", metavar="REGEX", help="Command lines that fit, with their whole trees. Without a value: python.*train\\.py"),
    click.option("--gpus", is_flag=True, help="Whoever holds a GPU, with their whole trees."),
    click.option("--user", metavar="NAME", help="Processes of this user; 'all' for anybody's. Default: who logs in, with --run anybody's."),
    click.option("--sudo", is_flag=True, help="Run as root on the nodes (sudo -n)."),
)  # fmt: skip


every_option = click.option("--all-runs", "every", is_flag=True, help="Every run on the nodes.")


def make_pick(options: dict[str, Any]) -> Pick:
    """Raises `UsageError` for two ways at once or a bad expression."""
    import re

    from clusterctl.jobs.processes import DEFAULT_MATCH, Pick

    match, runs, gpus = options["match"], options["runs"], options["gpus"]
    if sum((match is not None, bool(runs), gpus)) > 1:
        raise UsageError("--run, --match and --gpus exclude each other")
    if match is not None:
        match = match or DEFAULT_MATCH
        try:
            re.compile(match)
        except re.error as error:
            raise UsageError(f"--match {match!r} is not a regular expression: {error}") from None
        if re.search(match, ""):
            raise UsageError(
                f"--match {match!r} fits every process", hint="say more of the program"
            )
    user = options["user"]
    owner = None if user == "all" or (user is None and runs) else user or ""
    return Pick(runs=tuple(runs), match=match, gpus=gpus, user=owner)


def _signal(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    names = {str(number.value): number.name for number in signal.Signals}
    name = names.get(value, value.upper())
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in names.values() or name in ("SIGSTOP", "SIGCONT"):
        raise click.BadParameter(f"{value} is not a signal that ends a process")
    return name


@click.command(
    "kill",
    epilog="""\b
Examples:
  clusterctl kill nodes.txt
  clusterctl kill nodes.txt --match 'python.*train\\.py' --user ubuntu --sudo --dry-run""",
)
@pick_options
@every_option
@click.option(
    "--signal",
    "signal_name",
    default="TERM",
    show_default=True,
    metavar="NAME",
    callback=_signal,
    help="What is sent first; KILL leaves no grace.",
)
@click.option(
    "--grace",
    type=Duration(0),
    default=10.0,
    show_default=True,
    help="Seconds from the first signal to SIGKILL.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be ended; end nothing.")
@cluster_options
@output_options
def command(
    settings: Settings,
    output: Output,
    signal_name: str,
    grace: float,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """End a job on all nodes, and prove that it is gone.

    A job is found by the tag that `launch` gives to all its processes, or by --match or --gpus;
    always with all that descends from it. Exit code 1 when something is left, 3 when a node did not
    confirm, 4 without a yes.
    """
    from clusterctl.jobs.kill import Order, end, exit_code, report_lines, to_json
    from clusterctl.jobs.processes import look, one_run
    from clusterctl.output import unreachable_json

    pick = make_pick(options)
    order = Order(signal_name, grace)
    transport = settings.transport()
    jobs, results = look(pick, settings, transport, sudo=options["sudo"], sweep=output.sweep)
    one_run(jobs, pick, every=options["every"])
    count = sum(len(job.processes) for job in jobs)
    if not output.json:
        show_plan(output, jobs, pick)
    ended: list[Ended] = []
    ways = results
    if count and not dry_run:
        nodes = sum(bool(job.processes) for job in jobs)
        what = f"{counted(count, 'process')} on {counted(nodes, 'node')} ({order.words()})"
        output.confirm(f"End {what}?", "nothing was ended", yes=yes)
    if not dry_run:
        ended, more = end(
            jobs, pick, order, settings, transport, sudo=options["sudo"], sweep=output.sweep
        )
        ways = [*results, *more]
    silent = any(job.unreachable for job in jobs)
    code = exit_code(ended) if ended else 3 if silent else 0
    if output.json:
        by_node = {result.node: unreachable_json(result) for result in results}
        plan = [
            {
                "node": job.node.name,
                "processes": [process.raw for process in job.processes],
                "others": [process.raw for process in job.others],
                "unreachable": by_node[job.node],
            }
            for job in jobs
        ]
        nodes_json = to_json(ended, lambda job: by_node[job.node]) if ended else plan
        output.document("kill", dry_run=dry_run, exit_code=code, nodes=nodes_json)
    else:
        good, bad = report_lines(ended)
        if not count:
            output.note(
                f"nothing found: {pick.words()}"
                if not silent
                else f"not found where nodes answered: {pick.words()}"
            )
        elif not dry_run:
            output.line(good, None if bad else "good")
        for line in bad:
            output.warn(line, "bad")
    output.ways(ways)
    if dry_run or output.json:
        output.unreachable(results)
    return code


def show_plan(output: Output, jobs: list[NodeJob], pick: Pick) -> None:
    """Nodes with equal shares in one line; with -v every process."""
    from clusterctl.jobs.processes import others_lines, plan_rows

    rows = plan_rows(jobs)
    if rows and not output.quiet:
        output.table(
            ["NODES", "PROC", "RANKS", "OWNER", "WHAT", "GPU MEM", "AGE"],
            [
                [
                    row.nodes,
                    str(row.count),
                    row.ranks or "-",
                    row.owners,
                    row.what,
                    "-" if row.gpu_bytes is None else f"{row.gpu_bytes / (1 << 30):.0f} GiB",
                    clock(row.oldest_s),
                ]
                for row in rows
            ],
            right=["PROC", "GPU MEM"],
        )
        runs = list(dict.fromkeys(p.run for job in jobs for p in job.processes if p.run))
        programs = list(
            dict.fromkeys(p.program for job in jobs for p in job.processes if p.role == "trainer")
        )
        if runs:
            output.line(f"run {', '.join(runs)}")
        if programs:
            output.line(f"trainers run {'; '.join(programs[:4])}")
        if output.verbose:
            for job in jobs:
                for process in job.processes:
                    output.line(
                        f"  {job.node.name}  pid {process.pid}  {process.label}  {process.state}"
                        f"  {process.user}  {process.program}"
                    )
    for line in others_lines(jobs):
        output.note(line)
    for job in jobs:
        for note in job.notes:
            output.note(f"{job.node.name}: {note}")
