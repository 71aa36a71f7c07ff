"""Connections that are lost or silent while the ranks go on: made again, and said.

Silence is not death: a node that says nothing while steps go on is no failure. Its agent keeps the
ranks for the lease, and gives a head that comes back what it has missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterctl.launch.hang import StepClock
from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.state import RunState
from clusterctl.remote.inbox import NodeMessage
from clusterctl.remote.session_pool import SessionPool

PATIENCE = 3.0  # times the longest recent step: so long steps go on without a node's word


class Connections:
    """Of a run that has been started; before that, a lost connection ends the launch."""

    def __init__(
        self,
        plan: LaunchPlan,
        state: RunState,
        clock: StepClock,
        agents: SessionPool,
        tell: Callable[..., None],
    ) -> None:
        self._timing, self._nodes = plan.timing, {node.name: node for node in plan.nodes}
        self._state, self._clock = state, clock
        self._agents, self._tell = agents, tell
        self.away: set[str] = set()  # nodes without a connection
        self.stopping: dict[str, Any] | None = None  # the order, also for nodes that come back

    def stop(self, grace_s: float) -> None:
        """Order all ranks to end. Lost nodes too: they may only have been frozen."""
        self.stopping = {"op": "stop", "grace_s": grace_s}
        self._agents.send_all(self.stopping)

    def loses(self, message: NodeMessage) -> bool:
        """Whether this is the end of a connection that is now made again."""
        name = message.node
        is_cut = message.data is None and not message.is_wrong
        if not is_cut or self._state.nodes[name].is_over or name in self.away:
            return False
        self.lose(name, message.why)
        return True

    def finds(self, message: NodeMessage) -> None:
        """After a message was taken: a node is back, or its agent waits to be dismissed."""
        name, kind = message.node, (message.data or {}).get("type")
        if kind == "gone":
            self._agents.send(name, {"op": "bye"})
        elif kind == "resumed":
            self.away.discard(name)
            self._tell("reconnected", f"{name} is connected again", node=name)
            if self.stopping is not None:
                self._agents.send(name, self.stopping)

    def why_lost(self, name: str, now: float) -> str | None:
        """Of a node that has been silent for too long; None, and a new connection, while steps go
        on without its word."""
        timing, clock, heard_s = self._timing, self._clock, self._state.nodes[name].heard_s
        allowed_s = max(timing.silent_s, PATIENCE * max(clock.lengths, default=0.0))
        goes_on = clock.step is not None and heard_s < clock.since_s > now - allowed_s
        why = f"it has sent nothing for {now - heard_s:.0f} s"
        if not goes_on or now - heard_s > timing.lease_s:
            return why
        if name not in self.away:
            self.lose(name, why)
        return None

    def slept(self, seconds: float) -> None:
        """The head itself was stopped: what nodes said in that time is still on the way."""
        for node in self._state.nodes.values():
            node.heard_s += seconds
        self._clock.slept(seconds)

    def lose(self, name: str, why: str) -> None:
        """Its connection is made again in the background, while the lease lasts."""
        node = self._state.nodes[name]
        node.text = "no connection"
        self.away.add(name)
        self._tell("disconnected", f"{name}: {why}; its ranks go on, connecting again", node=name)
        self._agents.reconnect(self._nodes[name], node.heard_s + self._timing.lease_s)
