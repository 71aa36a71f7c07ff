"""Chooses the address where ranks meet: the first one that every node reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.state import RunFailed
from clusterctl.nodes import fold


def candidates(plan: LaunchPlan, hello: Mapping[str, Any]) -> list[str]:
    """The user's --master_addr alone, else the hostfile's name and what the node calls itself.

    The hostfile's name may be an alias that only the head's ssh_config knows.
    """
    found = [plan.address] if plan.address_fixed else [plan.address, *hello["addresses"]]
    return list(dict.fromkeys(found))


def choose_address(
    plan: LaunchPlan, addresses: Sequence[str], knocks: Mapping[str, Mapping[str, str | None]]
) -> str:
    """`knocks` holds for each node and address why it does not reach it there, or None.

    Raises `RunFailed` with the nodes that the best address leaves out.
    """
    deaf = {
        address: [node.name for node in plan.nodes if knocks[node.name][address] is not None]
        for address in addresses
    }
    best = min(addresses, key=lambda address: len(deaf[address]))
    if not deaf[best]:
        return best
    why = knocks[deaf[best][0]][best]
    raise RunFailed(
        1,
        f"{fold(deaf[best])} cannot reach the first node at {best}: {why}",
        hint="--master_addr ADDRESS names one that every node reaches; "
        "a firewall must let the nodes reach each other",
    )
