"""End a job on all nodes, and prove that it is gone."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Any

import click

from checks import units
from checks.units import counted
from clusterctl.errors import UsageError
from clusterctl.jobs import processes
from clusterctl.jobs.kill import (
    OVER_S,
    Ended,
    Order,
    end,
    exit_code,
    processes_json,
    report_lines,
    to_json,
)
from clusterctl.launch.head.waiting import end_waiting, find_waiting
from clusterctl.output import Output, unreachable_json
from clusterctl.param_types import Duration
from clusterctl.runs.waiting import Waiting
from clusterctl.settings import YES, Settings, cluster_command, flag, option, with_options

pick_options = with_options(
    click.option("--run", "runs", multiple=True, metavar="ID", help="This run; repeat it for more. Default: the only run on the nodes."),
    click.option("--match", is_flag=False, flag_value="", metavar="REGEX", help="Command lines that fit, with their whole trees. Without a value: python.*train\\.py"),
    click.option("--gpus", is_flag=True, help="Processes that hold a GPU, with their whole trees."),
    click.option("--user", metavar="NAME", help="Processes of this user, or 'all'. Default: the user who logs in, with --run all."),
    click.option("--sudo", is_flag=True, help="Run as root on the nodes (sudo -n)."),
)  # fmt: skip
"""The command receives their values as keywords, for `make_pick`."""

ALL_RUNS = flag("--all-runs", "every", "Every run on the nodes.")
FIRST = "What is sent first; KILL leaves no grace."
PLAN_COLUMNS = ["NODES", "PROC", "RANKS", "OWNER", "WHAT", "GPU MEM", "AGE"]


def make_pick(options: dict[str, Any]) -> processes.Pick:
    """Raises `UsageError` for two ways at once or a bad expression."""
    match, runs, gpus = options["match"], options["runs"], options["gpus"]
    if sum((match is not None, bool(runs), gpus)) > 1:
        raise UsageError("--run, --match and --gpus exclude each other")
    if match is not None:
        match = match or processes.DEFAULT_MATCH
        try:
            fits_all = re.search(match, "")
        except re.error as error:
            raise UsageError(f"--match {match!r} is not a regular expression: {error}") from None
        if fits_all:
            hint = "say more of the program"
            raise UsageError(f"--match {match!r} fits every process", hint=hint)
    user = options["user"]
    owner = None if user == "all" or (user is None and runs) else user or ""
    return processes.Pick(runs=tuple(runs), match=match, gpus=gpus, user=owner)


def _signal(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    names = {str(number.value): number.name for number in signal.Signals}
    name = names.get(value, f"SIG{value.upper().removeprefix('SIG')}")
    if name not in names.values() or name in ("SIGSTOP", "SIGCONT"):
        raise click.BadParameter(f"{value} is not a signal that ends a process")
    return name


@cluster_command(
    "kill",
    pick_options,
    ALL_RUNS,
    option("--signal", "signal_name", FIRST, default="TERM", metavar="NAME", callback=_signal),
    option("--grace", "Seconds from the first signal to SIGKILL.", type=Duration(0), default=10.0),
    YES,
    flag("--dry-run", "Show what would be ended; end nothing."),
    examples="""
  clusterctl kill nodes.txt
  clusterctl kill nodes.txt --match 'python.*train\\.py' --user ubuntu --sudo --dry-run""",
)
def command(settings: Settings, output: Output, yes: bool, dry_run: bool, **options: Any) -> int:
    """A job is found by the tag that `launch` gives to all its processes, or by --match or --gpus;
    always with all that descends from it. Exit code 1 when something is left, 3 when a node did not
    confirm, 4 without a yes.
    """
    pick, sudo = make_pick(options), options["sudo"]
    order = Order(options["signal_name"], options["grace"])
    cluster = settings.cluster(output.sweep)
    jobs, results = processes.look(pick, cluster, sudo=sudo)
    waiting = find_waiting(jobs, pick)
    processes.one_run(jobs, pick, waiting, every=options["every"])
    count = sum(len(job.processes) for job in jobs)
    if not output.json:
        show_plan(output, jobs, pick, waiting)
    ended: list[Ended] = []
    ways = results
    if count and not dry_run:
        nodes = sum(bool(job.processes) for job in jobs)
        what = f"{counted(count, 'process')} on {counted(nodes, 'node')} ({order.words()})"
        output.confirm(f"End {what}?", "nothing was ended", yes=yes)
    elif waiting and not dry_run:
        names = ", ".join(one.run for one in waiting)
        output.confirm(f"End run {names}, which waits?", "nothing was ended", yes=yes)
    over: list[tuple[str, bool]] = []
    if not dry_run:
        ended, more = end(jobs, pick, order, cluster, waiting, sudo=sudo)
        ways = [*results, *more]
        over = end_waiting(waiting, "kill", OVER_S)
    silent = any(job.unreachable for job in jobs)
    code = exit_code(ended) if ended else 3 if silent else 0
    code = code if all(proved for _, proved in over) else code or 3
    if output.json:
        plan = [{"node": job.node.name, **processes_json(job)} for job in jobs]
        documents = to_json(ended) or plan
        for document, result in zip(documents, results, strict=True):
            document["unreachable"] = unreachable_json(result)
        also = {"waiting": [one.to_json() for one in waiting], "ended": [line for line, _ in over]}
        output.document("kill", dry_run=dry_run, exit_code=code, nodes=documents, **also)
    else:
        good, bad = report_lines(ended)
        if not count and not waiting:
            output.note(nothing_found(jobs, pick, ended))
        elif count and not dry_run:
            output.line(good, None if bad else "good")
        for line, proved in over:
            output.line(line, "good" if proved else "warn")
        for line in bad:
            output.warn(line, "bad")
    output.ways(ways)
    if dry_run or output.json:
        output.unreachable(results)
    return code


def nothing_found(
    jobs: list[processes.NodeJob], pick: processes.Pick, told: Sequence[object]
) -> str:
    """With what holds for a run that was named, wherever it may still be: `told` of the nodes."""
    silent = any(job.unreachable for job in jobs)
    text = f"{'not found where nodes answered' if silent else 'nothing found'}: {pick.words()}"
    return f"{text}; no supervisor starts it again" if pick.runs and told else text


def show_plan(
    output: Output,
    jobs: list[processes.NodeJob],
    pick: processes.Pick,
    waiting: Sequence[Waiting] = (),
) -> None:
    """Nodes with equal shares in one line; with -v every process."""
    found = [process for job in jobs for process in job.processes]
    if found and not output.quiet:
        rows = []
        for row in processes.plan_rows(jobs):
            held = "-" if row.gpu_bytes is None else units.size(row.gpu_bytes)
            cells = [row.nodes, str(row.count), row.ranks or "-", row.owners, row.what]
            rows.append([*cells, held, units.duration(row.oldest_s)])
        output.table(PLAN_COLUMNS, rows, ["PROC", "GPU MEM"])
        runs = dict.fromkeys(one.run for one in found if one.run)
        programs = list(dict.fromkeys(one.program for one in found if one.role == "trainer"))
        if runs:
            output.line(f"run {', '.join(runs)}")
        if programs:
            output.line(f"trainers run {'; '.join(programs[:4])}")
        for job in jobs if output.verbose else ():
            for one in job.processes:
                who = f"{job.node.name}  pid {one.pid}  {one.label}"
                output.line(f"  {who}  {one.state}  {one.user}  {one.program}")
    for run in waiting:
        output.note(run.sentence)
    for line in processes.others_lines(jobs):
        output.note(line)
    for job in jobs:
        for note in job.notes:
            output.note(f"{job.node.name}: {note}")
