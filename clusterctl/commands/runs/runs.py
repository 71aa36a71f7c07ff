"""The runs of this user that go on, as the nodes say."""

from __future__ import annotations

import time

from checks import units
from checks.units import counted
from clusterctl.nodes import fold
from clusterctl.output import Cell, Output
from clusterctl.settings import Settings, cluster_command

COLUMNS = ["DIRECTORY", "ATTEMPT", "NODES", "RANKS", "STEP", "FOR", "SUPERVISOR"]


@cluster_command(
    "runs",
    keeps_answers=True,
    examples="""
  clusterctl runs nodes.txt
  clusterctl runs nodes.txt --json""",
)
def command(settings: Settings, output: Output) -> int:
    """Every node is asked for its agents, so runs of another head are found, and runs whose
    supervisor has gone, and runs that wait for nodes. Exit code 1 where one waits, 3 where a node
    does not answer, or has an agent of another version: it may have more.
    """
    from clusterctl.runs.agents import found_by, runs_of, unread_by, waiting_by

    cluster = settings.cluster(output.sweep)
    results = cluster.ask("launch.agents", {"run": None})
    found = runs_of(found_by(results), waiting=waiting_by(results))
    silent, unread = [one for one in results if one.unreachable], unread_by(results)
    is_unsure = bool(silent or unread)
    code = 1 if any(run.waits is not None for run in found) else 3 if is_unsure else 0
    if output.json:
        nodes = {one.node.name: one.unreachable.sentence() for one in silent if one.unreachable}
        nodes |= unread
        runs = [one.to_json() for one in found]
        output.document("runs", runs=runs, unreachable=nodes, exit_code=code)
        return code
    if found:
        rows: list[list[str | Cell]] = [
            [
                run.run_dir,
                str(run.attempt),
                fold(run.nodes),
                str(run.ranks),
                Cell("waits", "warn") if run.waits is not None else str(run.step or "-"),
                units.duration(max(0.0, time.time() - run.since_s)),
                Cell(run.supervisor, None if run.keeps_s is None else "warn"),
            ]
            for run in found
        ]
        output.table(COLUMNS, rows, ["ATTEMPT", "RANKS", "STEP", "FOR"])
    for run in found:
        if run.waits is not None:
            output.warn(f"{run.run_dir} waits after attempt {run.attempt}: {run.waits}", "warn")
    asked = counted(len(results) - len(silent), "node")
    output.summary(f"{counted(len(found), 'run')} on {asked}", code)
    output.unreachable(results)
    for name, why in unread.items():
        output.warn(f"{name}  {why}", "bad")
    return code
