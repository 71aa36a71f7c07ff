"""The check at the end of a launch: what is left of a run on any node."""

from __future__ import annotations

from clusterctl.launch.plan import LaunchPlan
from clusterctl.remote.fanout import WIDTH, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.transport.base import Limits, Transport

REAP_S = 15.0  # TERM, KILL and a look on each node


Lines = tuple[str, ...]


def prove_gone(plan: LaunchPlan, transport: Transport, limits: Limits) -> tuple[Lines, Lines]:
    """Look for the run on every node again and end it; a sentence per leftover, per silent node."""
    args = {"run": plan.run_id, "kill": True, "grace_s": plan.timing.fail_grace_s}
    leftovers, unconfirmed = [], []
    sweep = ask(plan.nodes, transport, "reap", args, limits=limits, width=WIDTH, timeout_s=REAP_S)
    for result in in_order(plan.nodes, list(sweep)):
        name = result.node.name
        if result.unreachable is not None:
            until = f"{plan.timing.lease_s:g} s after its last message from here"
            why = f"{result.unreachable.sentence()}; if its agent lives, it ends the ranks {until}"
            unconfirmed.append(f"{name}: {why}")
        for left in result.value["left"] if result.value else ():
            process = f"pid {left['pid']} ({left['command']}, state {left['state']})"
            leftovers.append(f"{name}: {process}")
    return tuple(leftovers), tuple(unconfirmed)
