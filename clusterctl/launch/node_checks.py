"""Checks of the nodes: before the start of a run, and for what is left of it at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.state import RunFailed
from clusterctl.nodes import fold
from clusterctl.remote.cluster import Cluster

REAP_S = 15.0  # TERM, KILL and a look on each node
Lines = tuple[str, ...]


def check_fitness(plan: LaunchPlan, name: str, hello: Mapping[str, Any]) -> None:
    """Raise `RunFailed` when a node's report shows that it cannot run its ranks."""
    why, hint = "", ""
    if not hello["python_found"]:
        why = f"there is no {plan.python}"
        hint = "the environment must be at the same path on every node; --python names it"
    elif not hello["workdir_found"]:
        why, hint = f"there is no folder {plan.workdir}", "--workdir"
    elif hello["same_job"]:
        found = hello["same_job"][0]
        why = f"the same job runs already (run {found['run']}, pid {found['pid']})"
        hint = "stop it first, or give this one other --outputs"
    elif name == plan.master.name and hello["port"] is None:
        why = f"no free master port ({', '.join(map(str, plan.ports[:5]))} are taken)"
        hint = "--master_port PORT names another one"
    if why:
        raise RunFailed(1, f"{name}: {why}", hint=hint)


def candidates(plan: LaunchPlan, hello: Mapping[str, Any]) -> list[str]:
    """The user's --master_addr alone, else the hostfile's name and the first node's own addresses.

    The hostfile's name may be an alias that only the head's ssh_config knows.
    """
    more = () if plan.address_fixed else hello["addresses"]
    return list(dict.fromkeys([plan.address, *more]))


def choose_address(
    plan: LaunchPlan, addresses: Sequence[str], errors: Mapping[str, Mapping[str, str | None]]
) -> str:
    """The first address that every node reaches; else `RunFailed` names the nodes that do not.

    `errors` holds for each node and address why the node cannot connect to it, or None.
    """

    def cut_off(address: str) -> list[str]:
        return [node.name for node in plan.nodes if errors[node.name][address] is not None]

    best = min(addresses, key=lambda address: len(cut_off(address)))
    names = cut_off(best)
    if not names:
        return best
    why = f"{fold(names)} cannot reach the first node at {best}: {errors[names[0]][best]}"
    hint = "--master_addr ADDRESS names one that every node reaches"
    raise RunFailed(1, why, hint=f"{hint}; a firewall must let the nodes reach each other")


def prove_gone(plan: LaunchPlan, cluster: Cluster) -> tuple[Lines, Lines]:
    """Look for the run on every node again and end it; a sentence per leftover, per silent node."""
    args = {"run": plan.run_id, "kill": True, "grace_s": plan.timing.fail_grace_s}
    leftovers, unconfirmed = [], []
    for result in cluster.ask("reap", args, timeout_s=REAP_S):
        name = result.node.name
        if result.unreachable is not None:
            until = f"{plan.timing.lease_s:g} s after its last message from here"
            why = f"{result.unreachable.sentence()}; if its agent lives, it ends the ranks {until}"
            unconfirmed.append(f"{name}: {why}")
        for left in result.value["left"] if result.value else ():
            process = f"pid {left['pid']} ({left['command']}, state {left['state']})"
            leftovers.append(f"{name}: {process}")
    return tuple(leftovers), tuple(unconfirmed)
