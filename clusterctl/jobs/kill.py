"""End a job on every node and report what is proved: gone, still there, or not confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checks import units
from checks.units import counted
from clusterctl.exclude.change import author
from clusterctl.jobs.processes import NodeJob, Pick, runs_to_end
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Answers, Cluster
from clusterctl.runs.waiting import Waiting

# Of the payload beyond its grace: SIGKILL, the release of GPU memory, two reads of all processes.
AFTER_GRACE_S = 5.0 + 10.0 + 10.0
OVER_S = 60.0  # for the supervisor of a run that waits to prove that nothing is left
# The answer of a node that had no process of the job.
NOTHING: dict[str, Any] = {"left": [], "gpu_left": [], "zombies": [], "forced": 0}
NOTHING |= {"gpu_unknown": "", "unmarked": ""}


@dataclass(frozen=True, slots=True)
class Order:
    signal: str = "SIGTERM"
    grace_s: float = 10.0  # until SIGKILL

    def words(self) -> str:
        if self.signal == "SIGKILL":
            return "SIGKILL at once"
        return f"{self.signal}, {units.duration(self.grace_s)}, SIGKILL"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the job ended on one node. `answer` is None if the node gave none."""

    job: NodeJob
    answer: Mapping[str, Any] | None
    why: str = ""  # without an answer

    @property
    def known(self) -> Mapping[str, Any]:
        """The answer, or that of a node with nothing to end."""
        return self.answer or NOTHING

    @property
    def is_left(self) -> bool:
        return bool(self.known["left"] or self.known["gpu_left"])

    @property
    def is_confirmed(self) -> bool:
        """Whether it is proved that no process and no GPU memory of it is left, and none comes."""
        unknown = self.known["gpu_unknown"] or self.known["unmarked"]
        return self.answer is not None and not unknown and not self.is_left

    @property
    def ended(self) -> int:
        """Processes that were there and are not any more."""
        known = self.known
        return int(known.get("asked", 0)) + int(known.get("swept", 0)) - len(known["left"])


def end(
    jobs: Sequence[NodeJob],
    pick: Pick,
    order: Order,
    cluster: Cluster,
    waiting: Sequence[Waiting] = (),
    *,
    sudo: bool = False,
) -> tuple[list[Ended], Answers]:
    """Carry out `order` on what `jobs` names. Runs are over then, also those that wait, and every
    node that answers knows it. Of what is no run, nodes without a process are not asked again."""
    runs, who = runs_to_end(jobs, pick, waiting), author()
    asked = [job for job in jobs if job.processes or (runs and job.unreachable is None)]
    by_node = {job.node: job.processes for job in asked}

    def args(node: Node) -> dict[str, Any]:
        processes = by_node[node]
        own = tuple(dict.fromkeys(process.run for process in processes if process.run))
        exact = pick
        if pick.match is None and not pick.gpus:
            exact = Pick(own or tuple(runs), user=pick.user)
        return {
            "op": "kill",
            "pick": exact.to_args(node),
            "targets": [[process.pid, process.start] for process in processes],
            "runs": list(runs.items()),
            "who": who,
            "signal": order.signal,
            "grace_s": order.grace_s,
            # None, where it is not known, counts as held.
            "gpu": any(process.gpu_bytes != 0 for process in processes),
        }

    limit_s = order.grace_s + AFTER_GRACE_S
    results = replace(cluster, nodes=list(by_node)).ask("kill", args, timeout_s=limit_s, sudo=sudo)
    answers = {result.node: result for result in results}
    ended = []
    for job in jobs:
        result = answers.get(job.node)
        why = job.unreachable if result is None else result.unreachable
        answer = NOTHING if result is None else result.value
        ended.append(Ended(job, answer) if why is None else Ended(job, None, why.sentence()))
    return ended, results


def exit_code(ended: Sequence[Ended]) -> int:
    """1 when something is left, 3 when a node did not confirm or cannot tell, else 0."""
    if any(one.is_left for one in ended):
        return 1
    return 0 if all(one.is_confirmed for one in ended) else 3


def report_lines(ended: Sequence[Ended]) -> tuple[str, list[str]]:
    """(what is gone, a line for each thing that is not)."""
    count = sum(one.ended for one in ended)
    nodes = sum(one.ended > 0 for one in ended)
    forced = sum(one.known["forced"] for one in ended)
    zombies = sum(len(one.known["zombies"]) for one in ended)
    good = f"gone: {counted(count, 'process')} on {counted(nodes, 'node')}"
    good += f", {forced} of them by SIGKILL" if forced else ""
    good += f"; {zombies} ended and not yet collected by their parents" if zombies else ""
    return good, [line for one in ended for line in _bad_lines(one)]


def _bad_lines(one: Ended) -> list[str]:
    name = one.job.node.name
    lines = [f"NOT CONFIRMED: {name}: {one.why}"] if one.answer is None else []
    labels = {process.pid: process.label for process in one.job.processes}
    for row in one.known["left"]:
        what = f"{row['command']} ({labels.get(row['pid'], 'started meanwhile')})"
        state = f"state {row['state']}: {row['why']}"
        lines.append(f"still there: {name}: pid {row['pid']} {what}, {state}")
    for held in one.known["gpu_left"]:
        size = "some" if held["bytes"] is None else f"{units.size(held['bytes'])} of"
        what = f"GPU memory of pid {held['pid']}, which has ended"
        lines.append(f"still there: {name}: {size} {what}")
    if unknown := one.known["gpu_unknown"]:
        lines.append(f"NOT CONFIRMED: {name}: that its GPU memory is free: {unknown}")
    if unmarked := one.known["unmarked"]:
        lines.append(f"NOT CONFIRMED: {name}: that the run is not started again: {unmarked}")
    return lines


def to_json(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    return [
        {
            "node": one.job.node.name,
            "confirmed": one.is_confirmed,
            **processes_json(one.job),
            **{key: one.known[key] for key in NOTHING},
            "ended": one.ended,
            "why": one.why,
        }
        for one in ended
    ]


def processes_json(job: NodeJob) -> dict[str, Any]:
    return {
        "processes": [process.raw for process in job.processes],
        "others": [process.raw for process in job.others],
    }
