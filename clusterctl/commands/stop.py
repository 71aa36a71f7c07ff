"""Ask a run to save a checkpoint and end, on all nodes.

The gentle form of kill: it sends one SIGTERM to each rank and waits; it never kills.
"""

from __future__ import annotations

from typing import Any

import click

from clusterctl.commands.kill import every_option, make_pick, pick_options, show_plan
from clusterctl.nodes import counted
from clusterctl.output import Output
from clusterctl.param_types import Duration
from clusterctl.settings import Settings, cluster_options, output_options


@click.command(
    "stop",
    epilog="""\b
Examples:
  clusterctl stop nodes.txt
  clusterctl stop nodes.txt --run 20260131-235959-a1b2c3 --wait 600 --yes""",
)
@pick_options
@every_option
@click.option(
    "--wait",
    "wait_s",
    type=Duration(0),
    default=120.0,
    show_default=True,
    help="Seconds for the current step and the checkpoint; then the command lists what still runs.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be asked to stop.")
@cluster_options
@output_options
def command(
    settings: Settings, output: Output, wait_s: float, yes: bool, dry_run: bool, **options: Any
) -> int:
    """Ask a run to save a checkpoint and end, on all nodes.

    Ranks end after the step at hand, all at the same one. A rank that has no handler for SIGTERM
    would die unsaved: then nothing is sent at all. Exit code 1 when ranks still run.
    """
    from clusterctl.jobs.processes import look, one_run
    from clusterctl.jobs.stop import left_lines, refuse_deaf, request, saved_paths, trainers
    from clusterctl.output import unreachable_json

    pick = make_pick(options)
    transport = settings.transport()
    jobs, results = look(
        pick, settings, transport, verb="stop", sudo=options["sudo"], sweep=output.sweep
    )
    one_run(jobs, pick, every=options["every"])
    ranks = sum(len(trainers(job)) for job in jobs)
    silent = [job.node.name for job in jobs if job.unreachable]
    if not output.json:
        show_plan(output, jobs, pick)
    answers = []
    if ranks:
        refuse_deaf(jobs)
    if ranks and not dry_run:
        nodes = sum(bool(trainers(job)) for job in jobs)
        what = f"{counted(ranks, 'rank')} on {counted(nodes, 'node')}"
        output.confirm(f"Ask {what} to save and end?", "nothing was stopped", yes=yes)
        answers = request(
            jobs, pick, wait_s, settings, transport, sudo=options["sudo"], sweep=output.sweep
        )
    left, saved = left_lines(answers), saved_paths(answers)
    lost = [answer for answer in answers if answer.unreachable]
    code = 1 if left else 3 if silent or lost else 0
    if output.json:
        output.document(
            "stop",
            dry_run=dry_run,
            exit_code=code,
            saved=saved,
            nodes=[
                {
                    "node": job.node.name,
                    "processes": [p.raw for p in job.processes],
                    "answer": next((a.value for a in answers if a.node == job.node), None),
                    "unreachable": unreachable_json(result),
                }
                for job, result in zip(jobs, results, strict=True)
            ],
        )
        return code
    if not ranks:
        output.note(f"nothing found: {pick.words()}")
    elif not dry_run and not left:
        seconds = max((a.value["seconds"] for a in answers if a.value), default=0.0)
        ended = sum(len(a.value["left"]) == 0 for a in answers if a.value)
        output.line(
            f"stopped on {counted(ended, 'node')} after {seconds:.1f} s", None if code else "good"
        )
    for path in saved:
        output.line(f"saved {path}")
    if ranks and not dry_run and not saved:
        output.note("no checkpoint younger than the request was seen", "warn")
    for line in left:
        output.warn(line, "bad")
    if left:
        output.warn("  hint: it may still be saving; look again, or clusterctl kill")
    for answer in lost:
        assert answer.unreachable is not None
        output.warn(f"NOT CONFIRMED: {answer.node.name}: {answer.unreachable.sentence()}", "bad")
    output.ways([*results, *answers])
    output.unreachable(results)
    return code
