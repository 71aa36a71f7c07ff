"""The proof at the end of a launch: a fresh look at every node for what is left of a run."""

from __future__ import annotations

from clusterctl.launch.plan import LaunchPlan
from clusterctl.remote.fanout import WIDTH, in_order
from clusterctl.remote.run_payload import ask
from clusterctl.transport.base import Limits, Transport

REAP_S = 15.0  # TERM, KILL and a look on each node


def prove_gone(
    plan: LaunchPlan, transport: Transport, limits: Limits
) -> tuple[list[str], list[str]]:
    """Look at every node anew, end what is left, and say what could not be ended or seen.

    Returns (leftovers, unconfirmed), a sentence for each process and for each node.
    """
    args = {"run": plan.run_id, "kill": True, "grace_s": plan.timing.fail_grace_s}
    leftovers, unconfirmed = [], []
    sweep = ask(plan.nodes, transport, "reap", args, limits=limits, width=WIDTH, timeout_s=REAP_S)
    for result in in_order(plan.nodes, list(sweep)):
        if result.value is None:
            assert result.unreachable is not None
            unconfirmed.append(
                f"{result.node.name}: {result.unreachable.sentence()}; if its agent lives, it "
                f"ends the ranks {plan.timing.lease_s:g} s after it last heard from here"
            )
            continue
        leftovers += [
            f"{result.node.name}: pid {left['pid']} ({left['command']}, state {left['state']})"
            for left in result.value["left"]
        ]
    return leftovers, unconfirmed
