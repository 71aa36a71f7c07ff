"""Before the start: whether a node is fit, and the address where ranks meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.state import RunFailed
from clusterctl.nodes import fold


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
    """The first address that every node reaches.

    `errors` holds for each node and address why the node cannot connect to it, or None. Raises
    `RunFailed` with the nodes that cannot reach the best address.
    """
    cut_off = {
        address: [node.name for node in plan.nodes if errors[node.name][address] is not None]
        for address in addresses
    }
    best = min(addresses, key=lambda address: len(cut_off[address]))
    names = cut_off[best]
    if not names:
        return best
    raise RunFailed(
        1,
        f"{fold(names)} cannot reach the first node at {best}: {errors[names[0]][best]}",
        hint="--master_addr ADDRESS names one that every node reaches; "
        "a firewall must let the nodes reach each other",
    )
