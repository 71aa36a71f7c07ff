"""What is left of a run on its nodes: looked for, ended, and told."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from checks import units
from clusterctl.exclude.change import author
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.reach import another_head
from clusterctl.launch.state import Left
from clusterctl.remote.cluster import Cluster
from trainer.runlog.output import printable

REAP_S = 15.0  # TERM, KILL and a check on each node
Lines = tuple[str, ...]


def this_head() -> str:
    """As agents and people know this process."""
    return f"{author()}, process {os.getpid()}"


def leftover(name: str, process: Mapping[str, Any]) -> str:
    """A process that could not be ended, in one line."""
    return f"{name}: pid {process['pid']} ({process['command']}, state {process['state']})"


def prove_gone(
    plan: LaunchPlan,
    cluster: Cluster,
    *,
    keep_standby: bool = False,
    is_over: bool = False,
    is_asked: bool = False,
) -> tuple[Lines, Lines]:
    """Look for the run on every node again and end it; a sentence per leftover, per silent node.

    With `keep_standby`, what starts ranks stays for an attempt after this one. `is_over`: no other
    attempt follows, so what nodes know of the run is removed, too. Raises `Left` where another head
    supervises the run, which then goes on, unless its owner has asked for its end (`is_asked`). A
    node that says so alone is one of which nothing is proved.
    """
    args = {"run": plan.run_id, "kill": True, "grace_s": plan.timing.fail_grace_s}
    args["head"] = None if is_asked else this_head()
    args |= {"keep_standby": keep_standby, "run_dir": str(plan.run_dir) if is_over else None}
    leftovers, unconfirmed = list[str](), list[str]()
    heads, answered = dict[str, str](), list[str]()
    # By name: one machine may be several nodes, of which others train on.
    for result in cluster.ask("reap", lambda node: {**args, "node": node.name}, timeout_s=REAP_S):
        name = result.node.name
        if result.unreachable is not None:
            until = f"{units.duration(plan.timing.lease_s)} after its last message from here"
            why = f"{result.unreachable.sentence()}; if its agent lives, it ends the ranks {until}"
            unconfirmed.append(f"{name}: {why}")
        if result.value is None:
            continue
        answered.append(name)
        if result.value["supervised"] is not None:
            heads[name] = result.value["supervised"]
        for process in result.value["left"]:
            leftovers.append(leftover(name, process))
    if heads and another_head.is_elsewhere(plan.run_dir, heads, answered):
        name, head = next(iter(heads.items()))
        raise Left(f"{name} is supervised by {printable(head)}")
    for name, head in heads.items():
        unconfirmed.append(f"{name}: {another_head.doubt(head)}; nothing was ended there")
    return tuple(leftovers), tuple(unconfirmed)


def prove_others_gone(
    plan: LaunchPlan, cluster: Cluster, lost: Collection[str], left: Mapping[str, str]
) -> tuple[Lines, Lines]:
    """The same where an attempt follows: nodes that were just lost, and those that have told what
    they could not end, are asked by that one. What starts ranks stays for it."""
    asked = [node for node in cluster.nodes if node.name not in lost and node.name not in left]
    found, unconfirmed = prove_gone(plan, replace(cluster, nodes=asked), keep_standby=True)
    return (*left.values(), *found), unconfirmed
