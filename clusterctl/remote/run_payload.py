"""One payload on many nodes: what every reading command does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.session_pool import sweep_deadline_s
from clusterctl.transport.base import Limits, Progress, Transport


def ask(
    nodes: Sequence[Node],
    transport: Transport,
    verb: str,
    args: dict[str, Any] | Callable[[Node], dict[str, Any]],
    *,
    limits: Limits,
    width: int,
    timeout_s: float | None = None,
    lease: bool = False,
    sudo: bool = False,
) -> Fanout[dict[str, Any]]:
    """A fan-out whose values are the envelopes of `verb`; nothing runs before it is iterated.

    `args` may be a function of the node; `sudo` runs the payload as root.
    `timeout_s` bounds one node's answer (default: the command limit). With more nodes than
    `width` the deadline for all grows by the number of waves, unless the user set it.
    """
    patience_s = limits.command_s if timeout_s is None else timeout_s
    deadline_s = sweep_deadline_s(len(nodes), limits, patience_s, width)

    def work(node: Node, progress: Progress) -> dict[str, Any]:
        given = args(node) if callable(args) else args
        connection = transport.connect(node, limits, progress)
        try:
            return payload.probe(connection, verb, given, patience_s, lease=lease, sudo=sudo)
        finally:
            connection.close()

    return Fanout(nodes, work, deadline_s=deadline_s, width=width)


def tool_timeout(limits: Limits) -> float:
    """Seconds for one tool of the census: two in a row and the way home fit the command limit."""
    return min(10.0, limits.command_s / 3)
