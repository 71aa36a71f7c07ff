"""Ask a run to save and end, and say what became of it. Kills nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clusterctl.errors import ClusterctlError
from clusterctl.jobs.processes import NodeJob, Pick, Process, fold_ranks
from clusterctl.nodes import Node, fold
from clusterctl.remote.fanout import NodeResult, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.settings import Settings
from clusterctl.transport.base import Transport

AFTER_S = 15.0  # of the payload beyond its patience: looking for the checkpoint and the rest


def trainers(job: NodeJob) -> list[Process]:
    return [process for process in job.processes if process.role == "trainer"]


def refuse_deaf(jobs: Sequence[NodeJob]) -> None:
    """Raises `ClusterctlError` when a rank would die of SIGTERM instead of saving."""
    deaf = [(job.node.name, p) for job in jobs for p in trainers(job) if not p.raw.get("asks")]
    if deaf:
        names = fold(dict.fromkeys(name for name, _ in deaf))
        ranks = fold_ranks(p.rank for _, p in deaf if p.rank is not None) or "of unknown number"
        raise ClusterctlError(
            f"rank {ranks} on {names} has no handler for SIGTERM: it would end without saving",
            hint="nothing was asked to stop; clusterctl kill ends it as it is",
        )


def request(
    jobs: Sequence[NodeJob],
    pick: Pick,
    timeout_s: float,
    settings: Settings,
    transport: Transport,
    *,
    sudo: bool = False,
    sweep: Callable[[Any, int], Iterable[NodeResult[dict[str, Any]]]] | None = None,
) -> list[NodeResult[dict[str, Any]]]:
    """One SIGTERM to every rank; returns when they have ended or patience has."""
    by_node = {job.node: job for job in jobs if trainers(job)}

    def args(node: Node) -> dict[str, Any]:
        found = trainers(by_node[node])
        return {
            "op": "stop",
            "pick": pick.to_args(node),
            "targets": [[process.pid, process.start] for process in found],
            "run_dirs": list(dict.fromkeys(p.run_dir for p in found if p.run_dir)),
            "timeout_s": timeout_s,
        }

    nodes = list(by_node)
    fanout = ask(
        nodes,
        transport,
        "stop",
        args,
        limits=settings.limits,
        width=settings.width,
        timeout_s=timeout_s + AFTER_S,
        sudo=sudo,
    )
    return in_order(nodes, list(sweep(fanout, len(nodes)) if sweep else fanout))


def left_lines(results: Sequence[NodeResult[dict[str, Any]]]) -> list[str]:
    """Ranks that still run, with what they say they do."""
    lines = []
    for result in results:
        for row in result.value["left"] if result.value else ():
            beat = row.get("beat")
            doing = (
                f"step {beat['step']}, {beat['phase']} for {beat['age_s']:.0f} s"
                if beat
                else f"state {row['state']}"
            )
            why = f", {row['why']}" if row["why"] else ""
            lines.append(
                f"still running: {result.node.name}: "
                f"rank {row['rank']} pid {row['pid']} ({doing}{why})"
            )
    return lines


def saved_paths(results: Sequence[NodeResult[dict[str, Any]]]) -> list[str]:
    """Checkpoints that were made of it, as the nodes see them."""
    return list(dict.fromkeys(r.value["saved"] for r in results if r.value and r.value["saved"]))
