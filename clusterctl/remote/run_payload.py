"""One payload on many nodes: what every reading command does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.fanout import Fanout
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
    waves = max(1, math.ceil(len(nodes) / width))
    one_s = limits.tcp_s + limits.handshake_s + limits.channel_s + patience_s

    def work(node: Node, progress: Progress) -> dict[str, Any]:
        given = args(node) if callable(args) else args
        connection = transport.connect(node, limits, progress)
        try:
            return ship.probe(connection, verb, given, patience_s, lease=lease, sudo=sudo)
        finally:
            connection.close()

    return Fanout(nodes, work, deadline_s=limits.run_s or one_s * waves, width=width)


def tool_timeout(limits: Limits) -> float:
    """Seconds for one tool of the census: two in a row and the way home fit the command limit."""
    return min(10.0, limits.command_s / 3)
