"""The agents of a launch: one on each node, all their messages in one inbox."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from clusterctl.launch.plan import LaunchPlan
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.session_pool import NodeMessage, SessionPool
from clusterctl.transport.base import Limits, Transport

AgentMessage = NodeMessage


class AgentConnections(SessionPool):
    """The plan's agents by node name."""

    def __init__(self, plan: LaunchPlan, transport: Transport, limits: Limits) -> None:
        shares = {share.node: share for share in plan.shares}
        super().__init__(
            plan.nodes,
            transport,
            limits,
            verb="agent",
            args=lambda node: plan.agent_args(shares[node]),
            start_timeout_s=plan.timing.hello_s,
        )

    def start(self, meanwhile: Callable[[], None]) -> list[NodeResult[None]]:
        """Start an agent on every node; returns the nodes where that failed.

        Calls `meanwhile` several times a second, which may raise to give up: a node that does not
        answer must not hold a Ctrl-C up for its whole timeout.
        """
        arrived: queue.SimpleQueue[NodeResult[None] | None] = queue.SimpleQueue()

        def sweep() -> None:
            for result in self.open():
                arrived.put(result)
            arrived.put(None)

        threading.Thread(target=sweep, name="dial", daemon=True).start()
        failed: list[NodeResult[None]] = []
        while True:
            try:
                result = arrived.get(timeout=0.1)
            except queue.Empty:
                meanwhile()
                continue
            if result is None:
                return failed
            if result.unreachable is not None:
                failed.append(result)
