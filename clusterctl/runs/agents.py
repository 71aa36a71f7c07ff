"""Which runs of this user go on, as the agents on the nodes say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checks import units
from clusterctl.nodes import fold
from clusterctl.remote.fanout import NodeResult
from clusterctl.runs.waiting import Waiting, waiting_of

Agents = Sequence[tuple[str, dict[str, Any]]]  # node of the hostfile and an agent's facts


@dataclass(frozen=True, slots=True)
class Running:
    """A run by the agents that were found. `heads` are the supervisors connected to them."""

    run_id: str
    run_dir: str
    attempt: int
    nodes: tuple[str, ...]
    ranks: int
    since_s: float  # unix time, of the oldest agent of this attempt
    heads: tuple[str, ...]
    keeps_s: float | None  # seconds until the first agent without a head stops its ranks
    step: int | None
    phase: str | None  # of the rank that is furthest behind
    waits: str | None = None  # between two attempts: for what

    @property
    def supervisor(self) -> str:
        """For people: who supervises it, or how long it continues without."""
        if self.keeps_s is None:
            return ", ".join(self.heads)
        left = f"none; without one it saves and ends in {units.duration(max(0.0, self.keeps_s))}"
        return f"{', '.join(self.heads)} on some nodes, {left}" if self.heads else left

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "run_dir": self.run_dir,
            "attempt": self.attempt,
            "nodes": list(self.nodes),
            "ranks": self.ranks,
            "since_s": self.since_s,
            "supervisors": list(self.heads),
            "ends_without_supervisor_in_s": self.keeps_s,
            "step": self.step,
            "phase": self.phase if self.waits is None else "waiting",
            "reason": self.waits,
        }


def found_by(results: Sequence[NodeResult[dict[str, Any]]]) -> Agents:
    """(node, agent) of all answers to the verb launch.agents."""
    return [
        (result.node.name, agent)
        for result in results
        if result.value is not None
        for agent in result.value["agents"]
    ]


def waiting_by(results: Sequence[NodeResult[dict[str, Any]]]) -> list[Waiting]:
    """Runs between two attempts, by the answers to the same verb."""
    return waiting_of(
        (result.node.name, one)
        for result in results
        if result.value is not None
        for one in result.value["waiting"]
    )


def unread_by(results: Sequence[NodeResult[dict[str, Any]]]) -> dict[str, str]:
    """Nodes with agents that are there and are not understood, and why: their runs may go on."""
    found = {one.node.name: "; ".join(one.value["unread"]) for one in results if one.value}
    return {name: why for name, why in found.items() if why}


def runs_of(
    agents: Agents, now_s: float | None = None, waiting: Sequence[Waiting] = ()
) -> list[Running]:
    """By run, the newest first. Nodes that are names of one machine answer for each other. A run of
    which an agent is there does not wait."""
    now_s = time.time() if now_s is None else now_s
    by_run: dict[str, dict[str, dict[str, Any]]] = {}
    for _, agent in agents:
        by_run.setdefault(agent["run"], {})[agent["node"]] = agent
    found = [_running(run_id, list(one.values()), now_s) for run_id, one in by_run.items()]
    found += [_between(one) for one in waiting if one.run not in by_run]
    return sorted(found, key=lambda one: one.run_id, reverse=True)


def _running(run_id: str, agents: list[dict[str, Any]], now_s: float) -> Running:
    agents.sort(key=lambda one: one["first_rank"])
    newest = max(one["attempt"] for one in agents)
    current = [one for one in agents if one["attempt"] == newest]
    alone = [one for one in current if one["alone_since_s"] is not None]
    left = [one["alone_since_s"] + one["lease_s"] - now_s for one in alone]
    steps = [(one["step"], one["phase"]) for one in current if one["step"] is not None]
    step, phase = min(steps, default=(None, None))
    return Running(
        run_id,
        current[0]["run_dir"],
        newest,
        tuple(one["node"] for one in current),
        sum(one["slots"] for one in current),
        min(one["since_s"] for one in current),
        tuple(dict.fromkeys(one["head"] for one in current if one["head"])),
        min(left, default=None),
        step,
        phase,
    )


def _between(one: Waiting) -> Running:
    facts = (one.run, one.run_dir, one.attempt, one.nodes, 0, one.since_s, (one.head,))
    return Running(*facts, None, None, None, one.text or "a look at its nodes")


def lines(run: Running) -> list[str]:
    """For `status`, of a run whose supervisor has gone."""
    where = f"{fold(run.nodes)}, {run.ranks} ranks" if run.ranks != 1 else f"{run.nodes[0]}, 1 rank"
    at = f", step {run.step} ({run.phase})" if run.step is not None else ""
    return [f"ranks      {where}{at}", f"supervisor {run.supervisor}"]
