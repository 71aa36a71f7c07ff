"""The check at the end of a launch: what is left of a run on any node."""

from __future__ import annotations

from clusterctl.launch.plan import LaunchPlan
from clusterctl.remote.fanout import WIDTH, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.transport.base import Limits, Transport

REAP_S = 15.0  # TERM, KILL and a look on each node


def prove_gone(
    plan: LaunchPlan, transport: Transport, limits: Limits
) -> tuple[list[str], list[str]]:
    """Connect to every node again and end what is left of the run.

    Returns (leftovers, unconfirmed), a sentence for each process and for each node.
    """
    args = {"run": plan.run_id, "kill": True, "grace_s": plan.timing.fail_grace_s}
    leftovers, unconfirmed = [], []
    sweep = ask(plan.nodes, transport, "reap", args, limits=limits, width=WIDTH, timeout_s=REAP_S)
    for result in in_order(plan.nodes, list(sweep)):
        name = result.node.name
        if result.unreachable is not None:
            unconfirmed.append(
                f"{name}: {result.unreachable.sentence()}; if its agent lives, it ends the ranks "
                f"{plan.timing.lease_s:g} s after its last message from here"
            )
        for left in result.value["left"] if result.value else ():
            process = f"pid {left['pid']} ({left['command']}, state {left['state']})"
            leftovers.append(f"{name}: {process}")
    return leftovers, unconfirmed
