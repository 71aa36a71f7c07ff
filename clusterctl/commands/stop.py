"""Ask a run to save a checkpoint and end, on all nodes."""

from __future__ import annotations

from typing import Any

from clusterctl.commands.kill import ALL_RUNS, make_pick, pick_options, show_plan
from clusterctl.jobs.kill import processes_json
from clusterctl.jobs.processes import look, one_run
from clusterctl.jobs.stop import left_lines, refuse_without_handler, request, saved_paths, trainers
from clusterctl.nodes import counted
from clusterctl.output import Output, unreachable_json
from clusterctl.param_types import Duration
from clusterctl.remote.cluster import Answers
from clusterctl.settings import YES, Settings, cluster_command, flag, option

WAIT = "Seconds for the current step and the checkpoint; then the command lists what still runs."


@cluster_command(
    "stop",
    pick_options,
    ALL_RUNS,
    option("--wait", "wait_s", WAIT, type=Duration(0), default=120.0),
    YES,
    flag("--dry-run", "Show what would be asked to stop."),
    examples="""
  clusterctl stop nodes.txt
  clusterctl stop nodes.txt --run 20260131-235959-a1b2c3 --wait 600 --yes""",
)
def command(
    settings: Settings, output: Output, wait_s: float, yes: bool, dry_run: bool, **options: Any
) -> int:
    """Ranks end after the step at hand, all at the same one. A rank that has no handler for SIGTERM
    would die unsaved: then nothing is sent at all. Exit code 1 when ranks still run.
    """
    pick, sudo, cluster = make_pick(options), options["sudo"], settings.cluster(output.sweep)
    jobs, results = look(pick, cluster, verb="stop", sudo=sudo)
    one_run(jobs, pick, every=options["every"])
    ranks = sum(len(trainers(job)) for job in jobs)
    if not output.json:
        show_plan(output, jobs, pick)
    answers: Answers = []
    if ranks:
        refuse_without_handler(jobs)
    if ranks and not dry_run:
        nodes = sum(bool(trainers(job)) for job in jobs)
        what = f"{counted(ranks, 'rank')} on {counted(nodes, 'node')}"
        output.confirm(f"Ask {what} to save and end?", "nothing was stopped", yes=yes)
        answers = request(jobs, pick, wait_s, cluster, sudo=sudo)
    left, saved = left_lines(answers), saved_paths(answers)
    code = 1 if left else 3 if any(one.unreachable for one in [*results, *answers]) else 0
    if output.json:
        by_node = {answer.node: answer.value for answer in answers}
        documents = [
            {
                "node": job.node.name,
                "processes": processes_json(job)["processes"],
                "answer": by_node.get(job.node),
                "unreachable": unreachable_json(result),
            }
            for job, result in zip(jobs, results, strict=True)
        ]
        output.document("stop", dry_run=dry_run, exit_code=code, saved=saved, nodes=documents)
        return code
    if not ranks:
        output.note(f"nothing found: {pick.words()}")
    elif not dry_run and not left:
        values = [answer.value for answer in answers if answer.value]
        seconds = max((value["seconds"] for value in values), default=0.0)
        ended = counted(sum(not value["left"] for value in values), "node")
        output.line(f"stopped on {ended} after {seconds:.1f} s", None if code else "good")
    for path in saved:
        output.line(f"saved {path}")
    if ranks and not dry_run and not saved:
        output.note("no checkpoint younger than the request was seen", "warn")
    for line in left:
        output.warn(line, "bad")
    if left:
        output.warn("  hint: it may still be saving; look again, or clusterctl kill")
    for answer in answers:
        if why := answer.unreachable:
            output.warn(f"NOT CONFIRMED: {answer.node.name}: {why.sentence()}", "bad")
    output.ways([*results, *answers])
    output.unreachable(results)
    return code
