"""The plan of the next attempt: other nodes, a new port, the newest whole checkpoint. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.launch.plan import PORT_CHOICES, PORT_RANGE, LaunchPlan, assign_ranks
from clusterctl.nodes import Node


def next_plan(
    plan: LaunchPlan, nodes: Sequence[Node], slots: Mapping[str, int], checkpoint: str | None
) -> LaunchPlan:
    """`plan` is that of the last attempt. Ports that it tried are left out: what is left of its
    connections must not reach the new ranks. A port or an address that the user has given is kept,
    the address only while the first node is the same.
    """
    is_same_first = nodes[0].name == plan.master.name
    address = plan.address if plan.address_fixed and is_same_first else nodes[0].address
    ports = plan.ports
    if len(ports) > 1:
        free = [port for port in PORT_RANGE if port not in ports]
        ports = tuple(random.sample(free, PORT_CHOICES))
    return replace(
        plan,
        attempt=plan.attempt + 1,
        checkpoint=checkpoint,
        shares=assign_ranks(nodes, slots),
        address=address,
        address_fixed=plan.address_fixed and is_same_first,
        ports=ports,
    )
