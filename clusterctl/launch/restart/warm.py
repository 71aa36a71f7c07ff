"""Spares keep what ranks need imported, while a run trains on other nodes.

Reading torch takes most of the time of a first start on a node (docs/decisions/0014), and on a
network file system minutes. What stands by there starts no CUDA and ends by itself when nobody
asks for it again (trainer/starter/serve.py, STANDBY_S).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from clusterctl.launch.plan import LaunchPlan, Rendezvous, Share
from clusterctl.launch.restart.choose import choose
from clusterctl.launch.restart.excluded import excluded
from clusterctl.launch.restart.past import Past
from clusterctl.launch.restart.rules import Rules
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster

ASK_S = 10.0
EVERY_S = 50.0  # less than half of the time after which a starter ends that nobody asks for


class WarmSpares:
    """Asks the likely stand-ins of an attempt, in the background, again and again.

    Where it does not work, the next attempt starts what it needs, as on any node that has none.
    """

    def __init__(self, plan: LaunchPlan, cluster: Cluster, rules: Rules, past: Past) -> None:
        self.asked: set[str] = set()  # names of nodes where a starter may stand by
        self._plan, self._cluster, self._rules, self._past = plan, cluster, rules, past
        self._lost: Collection[str] = ()
        self._wake, self._is_needed, self._is_closed = threading.Event(), False, False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Called when ranks take steps: before that they need the file system more."""
        if self._thread is None and self._rules.spares and self._rules.max_restarts != 0:
            self._thread = threading.Thread(target=self._work, name="warm", daemon=True)
            self._thread.start()

    def need(self, lost: Collection[str]) -> None:
        """The attempt has failed, and these nodes are lost: as many spares are needed at once."""
        self._lost, self._is_needed = lost, True
        self._wake.set()
        self.begin()

    def close(self) -> None:
        """Ask no more; waits for nothing."""
        self._is_closed = True
        self._wake.set()

    def wait(self) -> None:
        """After `close`, until no node is asked any more."""
        if self._thread is not None:
            self._thread.join(ASK_S + 5.0)

    def _work(self) -> None:
        while self._is_needed or not self._is_closed:
            self._wake.clear()
            self._is_needed = False
            nodes = likely(self._plan, self._rules, self._past, self._lost)
            if nodes:
                self.asked |= {node.name for node in nodes}
                _ask(self._plan, self._cluster, self._rules, nodes)
            if not self._is_closed:
                self._wake.wait(EVERY_S)


def likely(plan: LaunchPlan, rules: Rules, past: Past, lost: Collection[str]) -> list[Node]:
    """The spares for the nodes that are lost; the first one where the node is not known yet."""
    unfit = {**past.unproved, **excluded(rules, past), **dict.fromkeys(lost, "lost")}
    before = [node.name for node in plan.nodes]
    guess = unfit if lost else {**unfit, before[-1]: "one of them may fail"}
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
