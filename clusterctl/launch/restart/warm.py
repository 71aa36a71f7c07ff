"""Spares import what ranks need while a failed attempt is still being stopped.

Reading torch takes most of the time of a first start on a node (docs/decisions/0014).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from clusterctl.launch.plan import LaunchPlan, Rendezvous, Share
from clusterctl.launch.restart.choose import choose
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster

ASK_S = 10.0


def warm(
    plan: LaunchPlan, cluster: Cluster, rules: Rules, past: Past, lost: Collection[str]
) -> list[Node]:
    """Ask likely stand-ins to start what starts ranks; returns them, and waits for nothing.

    Where it does not work, the next attempt starts it, as it does on any node that has none.
    """
    nodes = likely(plan, rules, past, lost)
    if nodes:
        work = threading.Thread(target=_ask, args=(plan, cluster, rules, nodes), daemon=True)
        work.start()
    return nodes


def likely(plan: LaunchPlan, rules: Rules, past: Past, lost: Collection[str]) -> list[Node]:
    """The spares for the nodes that are lost; the first one where the node is not known yet."""
    unfit = {**past.unproved, **past.barred, **dict.fromkeys(lost, "lost")}
    before = [node.name for node in plan.nodes]
    guess = unfit if lost else {**unfit, before[-1]: "one of them may have failed"}
    used = choose(rules.pool, before, guess).nodes
    spares = {node.name: node for node in rules.spares}
    return [spares[name] for name in used if name in spares and name not in before]


def _ask(plan: LaunchPlan, cluster: Cluster, rules: Rules, nodes: Sequence[Node]) -> None:
    first = Rendezvous(plan.address, plan.ports[0])  # the next attempt names its own

    def args(node: Node) -> dict[str, object]:
        share = Share(node, 0, 0, rules.slots.get(node.name, 1))
        given = {"argv": plan.argv(share, first), "env": plan.environment.values()}
        return {**plan.agent_args(share), **given}

    replace(cluster, nodes=nodes).ask("launch.warm", args, timeout_s=ASK_S)
