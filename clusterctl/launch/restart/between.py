"""What is asked of nodes between two attempts: are they clean and fit, and which checkpoints are
there? All questions go out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.launch.leftovers import prove_gone, this_head
from clusterctl.launch.plan import LaunchPlan
from clusterctl.nodes import Node
from clusterctl.payload.launch.stopped import sentence
from clusterctl.remote.cluster import Cluster
from trainer.runlog.retention import OVERHEAD_BYTES

LIST_S = 10.0  # for a shared file system that is slow
Unfit = dict[str, str]
Recheck = Callable[[Sequence[Node]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Found:
    """Of the nodes that a run may use: why some may not be, and what the others can load."""

    unfit: Unfit = field(default_factory=dict)
    checkpoint: str | None = None  # the newest whole one; None where there is none
    unseen: str = ""  # why checkpoints could not be listed on a node that can be used
    stopped: str = ""  # who has ended the run, as a node knows it


def look(
    plan: LaunchPlan,
    cluster: Cluster,
    nodes: Sequence[Node],
    *,
    unproved: Collection[str],
    recheck: Recheck,
    damaged: Collection[str] = (),
    since_s: float = 0.0,
    why: str = "",
) -> Found:
    """Ask `nodes`. Those in `unproved` are asked to end what is left of the run, first of all.

    `recheck` is a short preflight: the nodes that fail it, and why. `damaged` are checkpoints that
    could not be loaded. Nodes are told that the run waits for `why` since `since_s` (unix time).
    """
    suspects = [node for node in nodes if node.name in unproved]
    with ThreadPoolExecutor(3) as pool:
        gone = pool.submit(not_clean, plan, replace(cluster, nodes=suspects)) if suspects else None
        unfit = pool.submit(recheck, nodes)
        listed = pool.submit(_list, plan, replace(cluster, nodes=nodes), since_s, why)
        barred, seen, unseen, stopped = listed.result()
        found: Unfit = {**barred, **unfit.result(), **(gone.result() if gone else {})}
    seen = {node.name: seen[node.name] for node in nodes if node.name in seen}
    if any(seen[name] for name in seen):  # one that sees none is not on the shared file system
        blind = f"it sees no checkpoint in {plan.run_dir}"
        found |= {name: blind for name in seen if not seen[name] and name not in found}
    usable = [made for name, made in seen.items() if name not in found]
    missing = next((f"{name}: {why}" for name, why in unseen.items() if name not in found), "")
    return Found(found, newest(usable, damaged), missing, stopped)


def not_clean(plan: LaunchPlan, cluster: Cluster) -> Unfit:
    """End what is left of the run on these nodes; those that are not proved clean, and why."""
    leftovers, unconfirmed = prove_gone(plan, cluster)
    return by_node(leftovers, "there is still") | by_node(unconfirmed, "it is not proved clean:")


def by_node(lines: Iterable[str], why: str) -> Unfit:
    """Lines `node: text` of `prove_gone` as {node: "why text"}."""
    parts = (line.partition(": ") for line in lines)
    return {name: f"{why} {text}" for name, _, text in parts}


def newest(seen: Sequence[Sequence[str]], damaged: Collection[str]) -> str | None:
    """The newest checkpoint that every node sees; `seen` has each node's, oldest first."""
    if not seen:
        return None
    common = set.intersection(*map(set, seen)) - set(damaged)
    return next((name for name in reversed(seen[0]) if name in common), None)


def _list(
    plan: LaunchPlan, cluster: Cluster, since_s: float, why: str
) -> tuple[Unfit, dict[str, list[str]], Unfit, str]:
    """Nodes that cannot be asked, or have no room for the next checkpoint; the checkpoints of the
    others; those that could not say; who has ended the run."""
    head, shown = this_head(), plan.environment.redact(why)[:1000]
    waiting: dict[str, Any] = {
        "head": head,
        "run": plan.run_id,
        "job": plan.job_id,
        "run_dir": str(plan.run_dir),
    }
    waiting |= {"attempt": plan.attempt, "since_s": since_s, "text": shown}
    args = {"run_dir": str(plan.run_dir), "timeout_s": LIST_S}
    unfit, seen, unseen, stopped = {}, {}, {}, ""
    for result in cluster.ask(
        "launch.checkpoints",
        lambda node: {**args, "waiting": {**waiting, "node": node.name}},
        timeout_s=2 * LIST_S + 5.0,
    ):
        name = result.node.name
        if result.value is not None and result.value["stopped"] is not None:
            stopped = sentence(result.value["stopped"])
        if result.unreachable is not None:
            unfit[name] = result.unreachable.sentence()
        elif result.value is not None and result.value["error"] is not None:
            unseen[name] = result.value["error"]
        elif result.value is not None:
            seen[name] = result.value["complete"]
            if lacks := no_room(plan.run_dir, result.value["need"], result.value["room"]):
                unfit[name] = lacks
    return unfit, seen, unseen, stopped


def no_room(run_dir: Path, need_bytes: int | None, room_bytes: int | None) -> str:
    """Why the next checkpoint does not fit; "" where it does, or where that is unknown.

    The launch asked for --min-free once; a run that has filled its disk since then needs no more
    than the trainer itself asks for.
    """
    if need_bytes is None or room_bytes is None or room_bytes >= need_bytes + OVERHEAD_BYTES:
        return ""
    room, need = (units.size(size) for size in (room_bytes, need_bytes + OVERHEAD_BYTES))
    return f"{run_dir} has room for {room}, the next checkpoint needs {need}: free space there"
