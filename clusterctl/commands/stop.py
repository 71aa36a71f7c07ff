"""Ask a run to save a checkpoint and end, on all nodes."""

from __future__ import annotations

from typing import Any

from checks import units
from checks.units import counted
from clusterctl.commands.kill import ALL_RUNS, make_pick, nothing_found, pick_options, show_plan
from clusterctl.jobs.kill import processes_json
from clusterctl.jobs.processes import look, one_run, runs_to_end
from clusterctl.jobs.stop import (
    left_lines,
    refuse_without_handler,
    request,
    saved_paths,
    trainers,
    unmarked_lines,
)
from clusterctl.launch.head.waiting import end_waiting, find_waiting
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
    would die unsaved: then nothing is sent at all. A run between two attempts is ended, too. Exit
    code 1 when ranks still run.
    """
    pick, sudo, cluster = make_pick(options), options["sudo"], settings.cluster(output.sweep)
    jobs, results = look(pick, cluster, verb="stop", sudo=sudo)
    waiting = find_waiting(jobs, pick)
    one_run(jobs, pick, waiting, every=options["every"])
    ranks = sum(len(trainers(job)) for job in jobs)
    if not output.json:
        show_plan(output, jobs, pick, waiting)
    answers: Answers = []
    runs = runs_to_end(jobs, pick, waiting)
    if ranks:
        refuse_without_handler(jobs)
    # Of somebody's own program before its ranks are there: nobody of them can save.
    others = 0 if ranks or runs else sum(len(job.processes) for job in jobs)
    if not dry_run and (ranks or runs or waiting):
        nodes = sum(bool(trainers(job)) for job in jobs)
        what = f"Ask {counted(ranks, 'rank')} on {counted(nodes, 'node')} to save and end?"
        what = what if ranks else f"Stop run {', '.join(runs)}, none of whose ranks is there yet?"
        output.confirm(what, "nothing was stopped", yes=yes)
    if not dry_run and (ranks or runs):
        answers = request(jobs, pick, wait_s, cluster, waiting, sudo=sudo)
    over = [] if dry_run else end_waiting(waiting, "stop", wait_s)
    left, saved, unmarked = left_lines(answers), saved_paths(answers), unmarked_lines(answers)
    silent = any(one.unreachable for one in [*results, *answers])
    is_sure = not silent and not unmarked and all(proved for _, proved in over)
    code = 1 if left or others else 0 if is_sure else 3
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
        more = {"waiting": [one.to_json() for one in waiting], "ended": [line for line, _ in over]}
        output.document(
            "stop", dry_run=dry_run, exit_code=code, saved=saved, nodes=documents, **more
        )
        return code
    if others and not waiting:
        text = f"{counted(others, 'process')} found, and no rank that could save: nothing was sent"
        output.warn(text, "bad")
        output.warn("  hint: clusterctl kill with the same options ends what was found")
    elif not ranks and not waiting:
        output.note(nothing_found(jobs, pick, answers))
    elif ranks and not dry_run and not left:
        with_ranks = {job.node for job in jobs if trainers(job)}
        values = [one.value for one in answers if one.value and one.node in with_ranks]
        seconds = max((value["seconds"] for value in values), default=0.0)
        ended = counted(sum(not value["left"] for value in values), "node")
        output.line(f"stopped on {ended} after {units.duration(seconds)}", None if code else "good")
    for line, proved in over:
        output.line(line, "good" if proved else "warn")
    for path in saved:
        output.line(f"saved {path}")
    if ranks and not dry_run and not saved:
        output.note("no checkpoint younger than the request was seen", "warn")
    for line in left:
        output.warn(line, "bad")
    if left:
        output.warn("  hint: it may still be saving; look again, or clusterctl kill")
    for line in unmarked:
        output.warn(line, "bad")
    for answer in answers:
        if why := answer.unreachable:
            output.warn(f"NOT CONFIRMED: {answer.node.name}: {why.sentence()}", "bad")
    output.ways([*results, *answers])
    output.unreachable(results)
    return code
