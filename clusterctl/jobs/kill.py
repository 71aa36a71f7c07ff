"""End a job on every node and say what is proved: gone, still there, or not confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.jobs.processes import NodeJob, Pick
from clusterctl.nodes import Node, counted
from clusterctl.remote.fanout import NodeResult, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.settings import Settings
from clusterctl.transport.base import Transport

# Of the payload beyond its grace: SIGKILL's patience, the driver's, two looks at everything.
AFTER_GRACE_S = 5.0 + 10.0 + 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is done to the processes."""

    signal: str = "SIGTERM"
    grace_s: float = 10.0  # until SIGKILL

    def words(self) -> str:
        if self.signal == "SIGKILL":
            return "SIGKILL at once"
        return f"{self.signal}, {self.grace_s:g} s, SIGKILL"


@dataclass(frozen=True, slots=True)
class Ended:
    """How it went on one node. `answer` is None if the node gave none."""

    job: NodeJob
    answer: dict[str, Any] | None
    why: str = ""  # without an answer

    @property
    def left(self) -> list[dict[str, Any]]:
        return list(self.answer["left"]) if self.answer else []

    @property
    def gpu_left(self) -> list[dict[str, Any]]:
        return list(self.answer["gpu_left"]) if self.answer else []

    @property
    def unproved(self) -> str:
        """Why it is unknown whether GPU memory is free; "" where that is known."""
        return str(self.answer["gpu_unknown"]) if self.answer else ""

    @property
    def ended(self) -> int:
        """Processes that were there and are not any more."""
        if not self.answer:
            return 0
        return int(self.answer["asked"]) + int(self.answer["swept"]) - len(self.left)


def end(
    jobs: Sequence[NodeJob],
    pick: Pick,
    order: Order,
    settings: Settings,
    transport: Transport,
    *,
    sudo: bool = False,
    sweep: Callable[[Any, int], Iterable[NodeResult[dict[str, Any]]]] | None = None,
) -> tuple[list[Ended], list[NodeResult[dict[str, Any]]]]:
    """Carry out `order` on what `jobs` names; nodes without a process of it are not asked again."""
    by_node = {job.node: job for job in jobs}
    targets = [job.node for job in jobs if job.processes]

    def args(node: Node) -> dict[str, Any]:
        job = by_node[node]
        runs = tuple(dict.fromkeys(process.run for process in job.processes if process.run))
        is_tag = pick.match is None and not pick.gpus
        exact = Pick(runs, user=pick.user) if is_tag else pick
        return {
            "op": "kill",
            "pick": exact.to_args(node),
            "targets": [[process.pid, process.start] for process in job.processes],
            "signal": order.signal,
            "grace_s": order.grace_s,
            # What is not known may be held, too.
            "gpu": any(process.gpu_bytes != 0 for process in job.processes),
        }

    fanout = ask(
        targets,
        transport,
        "kill",
        args,
        limits=settings.limits,
        width=settings.width,
        timeout_s=order.grace_s + AFTER_GRACE_S,
        sudo=sudo,
    )
    results = in_order(targets, list(sweep(fanout, len(targets)) if sweep else fanout))
    answers = {result.node: result for result in results}
    return [_ended(job, answers.get(job.node)) for job in jobs], results


def _ended(job: NodeJob, result: NodeResult[dict[str, Any]] | None) -> Ended:
    nothing = {
        "left": [],
        "zombies": [],
        "gpu_left": [],
        "gpu_unknown": "",
        "asked": 0,
        "swept": 0,
        "forced": 0,
        "missed": 0,
        "seconds": 0.0,
    }
    if job.unreachable is not None:
        return Ended(job, None, job.unreachable.sentence())
    if result is None:
        return Ended(job, nothing)
    if result.value is None:
        assert result.unreachable is not None
        return Ended(job, None, result.unreachable.sentence())
    return Ended(job, result.value)


def exit_code(ended: Sequence[Ended]) -> int:
    """1 when something is left, 3 when a node did not confirm or cannot tell, else 0."""
    if any(one.left or one.gpu_left for one in ended):
        return 1
    return 3 if any(one.answer is None or one.unproved for one in ended) else 0


def report_lines(ended: Sequence[Ended]) -> tuple[str, list[str]]:
    """(the good news, the bad news): what is gone, and one line for each thing that is not."""
    count = sum(one.ended for one in ended)
    nodes = sum(one.ended > 0 for one in ended)
    forced = sum(one.answer["forced"] for one in ended if one.answer)
    zombies = sum(len(one.answer["zombies"]) for one in ended if one.answer)
    good = f"gone: {counted(count, 'process')} on {counted(nodes, 'node')}"
    if forced:
        good += f", {forced} of them by SIGKILL"
    if zombies:
        good += f"; {zombies} ended and not yet collected by their parents"
    bad = []
    for one in ended:
        name = one.job.node.name
        if one.answer is None:
            bad.append(f"NOT CONFIRMED: {name}: {one.why}")
        labels = {process.pid: process.label for process in one.job.processes}
        for row in one.left:
            what = labels.get(row["pid"], "started meanwhile")
            bad.append(
                f"still there: {name}: pid {row['pid']} {row['command']} ({what}), "
                f"state {row['state']}: {row['why']}"
            )
        for held in one.gpu_left:
            size = "some" if held["bytes"] is None else f"{held['bytes'] / (1 << 30):.1f} GiB of"
            bad.append(
                f"still there: {name}: {size} GPU memory of pid {held['pid']}, which has ended"
            )
        if one.unproved:
            bad.append(f"NOT CONFIRMED: {name}: that its GPU memory is free: {one.unproved}")
    return good, bad


def to_json(ended: Sequence[Ended], unreachable: Callable[[NodeJob], Any]) -> list[dict[str, Any]]:
    """One object per node, in the hostfile's order."""
    return [
        {
            "node": one.job.node.name,
            "confirmed": one.answer is not None and not (one.left or one.gpu_left or one.unproved),
            "processes": [process.raw for process in one.job.processes],
            "others": [process.raw for process in one.job.others],
            "left": one.left,
            "gpu_left": one.gpu_left,
            "gpu_unknown": one.unproved,
            "zombies": one.answer["zombies"] if one.answer else [],
            "ended": one.ended,
            "forced": one.answer["forced"] if one.answer else 0,
            "why": one.why,
            "unreachable": unreachable(one.job),
        }
        for one in ended
    ]
