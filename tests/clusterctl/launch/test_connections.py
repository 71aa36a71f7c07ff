"""When a connection is made again, and when its node is lost; without nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterctl.launch.plan import Timing
from clusterctl.launch.reach.connections import Connections
from clusterctl.launch.state import NodeState, RunState
from clusterctl.nodes import Node
from clusterctl.remote.inbox import NodeMessage


class _Agents:
    """A pool of sessions that only notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silence: dict[str, str | None] = {}

    def reconnect(self, node: Node, until_s: float) -> None:
        self.asked.append(node.name)


def test_connection_that_is_lost_before_its_agent_has_spoken_is_made_once_more() -> None:
    """A network that flaps: once the second loss was taken for the end of the node."""
    agents, told = _Agents(), []
    state = RunState(nodes={"n1": NodeState("running")})
    plan: Any = SimpleNamespace(timing=Timing(), nodes=[Node("n1")])
    rest: Any = (None, agents, lambda name, text, **_: told.append((name, text)), None)
    connections = Connections(plan, state, *rest)
    assert connections.loses(NodeMessage("n1", None, "reset"))
    assert connections.loses(NodeMessage("n1", None, "reset again"))
    assert agents.asked == ["n1", "n1"]
    assert told == [("disconnected", "n1: reset; its ranks go on, connecting again")]
    assert not connections.loses(NodeMessage("n1", None, "no way", is_given_up=True))
    assert not connections.loses(NodeMessage("n1", None, "nonsense", is_wrong=True))
