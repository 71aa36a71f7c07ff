"""Ask a run to save and end, and report how each rank ended. Kills nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from checks import units
from clusterctl.errors import ClusterctlError
from clusterctl.exclude.change import author
from clusterctl.jobs.processes import NodeJob, Pick, Process, fold_ranks, runs_to_end
from clusterctl.nodes import Node, fold
from clusterctl.remote.cluster import Answers, Cluster
from clusterctl.runs.waiting import Waiting

AFTER_S = 15.0  # of the payload beyond its patience: looking for the checkpoint and the rest


def trainers(job: NodeJob) -> list[Process]:
    return [process for process in job.processes if process.role == "trainer"]


def refuse_without_handler(jobs: Sequence[NodeJob]) -> None:
    """Raises `ClusterctlError` when a rank would die of SIGTERM instead of saving."""
    without = [(job.node.name, p) for job in jobs for p in trainers(job) if not p.raw.get("asks")]
    if without:
        names = fold(dict.fromkeys(name for name, _ in without))
        ranks = fold_ranks(p.rank for _, p in without if p.rank is not None) or "of unknown number"
        raise ClusterctlError(
            f"rank {ranks} on {names} has no handler for SIGTERM: it would end without saving",
            hint="no process was signalled; use clusterctl kill to end it without saving",
        )


def request(
    jobs: Sequence[NodeJob],
    pick: Pick,
    timeout_s: float,
    cluster: Cluster,
    waiting: Sequence[Waiting] = (),
    *,
    sudo: bool = False,
) -> Answers:
    """One SIGTERM to every rank; returns when all have ended or after `timeout_s`. Runs are over
    then, also those that wait, and every node that answers knows it."""
    runs, who = runs_to_end(jobs, pick, waiting), author()
    told = [job for job in jobs if trainers(job) or (runs and job.unreachable is None)]
    by_node = {job.node: trainers(job) for job in told}

    def args(node: Node) -> dict[str, Any]:
        found = by_node[node]
        return {
            "op": "stop",
            "pick": pick.to_args(node),
            "targets": [[process.pid, process.start] for process in found],
            "run_dirs": list(dict.fromkeys(p.run_dir for p in found if p.run_dir)),
            "timeout_s": timeout_s,
            "runs": list(runs.items()),
            "who": who,
        }

    asked = replace(cluster, nodes=list(by_node))
    return asked.ask("stop", args, timeout_s=timeout_s + AFTER_S, sudo=sudo)


def unmarked_lines(results: Answers) -> list[str]:
    """Nodes that could not be told that the run is over."""
    found = [(result.node.name, result.value["unmarked"]) for result in results if result.value]
    text = "NOT CONFIRMED: {}: that the run is not started again: {}"
    return [text.format(name, why) for name, why in found if why]


def left_lines(results: Answers) -> list[str]:
    """Ranks that still run, with what they report."""
    lines = []
    for result in results:
        for row in result.value["left"] if result.value else ():
            doing, beat = f"state {row['state']}", row.get("beat")
            if beat:
                doing = f"step {beat['step']}, {beat['phase']} for {units.duration(beat['age_s'])}"
            why = f", {row['why']}" if row["why"] else ""
            who = f"{result.node.name}: rank {row['rank']} pid {row['pid']}"
            lines.append(f"still running: {who} ({doing}{why})")
    return lines


def saved_paths(results: Answers) -> list[str]:
    """Checkpoints that the ranks saved, as the nodes see them."""
    return list(dict.fromkeys(r.value["saved"] for r in results if r.value and r.value["saved"]))
