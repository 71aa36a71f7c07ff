"""One payload on many nodes: what every reading command does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Connection, Limits, Progress, Transport

Answer = dict[str, Any]


def sweep_deadline_s(count: int, limits: Limits, timeout_s: float, width: int) -> float:
    """For `count` nodes, `width` at a time, of which one may take `timeout_s` beyond connecting."""
    one_s = limits.tcp_s + limits.handshake_s + limits.channel_s + timeout_s
    return limits.run_s or one_s * max(1, math.ceil(count / width))


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
) -> Fanout[Answer]:
    """A fan-out whose values are the envelopes of `verb`; nothing runs before it is iterated.

    `args` may be a function of the node; `sudo` runs the payload as root. `timeout_s` bounds one
    node's answer (default: the command limit). The deadline grows with nodes over `width`.
    """
    limit_s = limits.command_s if timeout_s is None else timeout_s

    def probe(node: Node, connection: Connection, _: float) -> Answer:
        given = args(node) if callable(args) else args
        return payload.probe(connection, verb, given, limit_s, lease=lease, sudo=sudo)

    return _on_connections(nodes, transport, limits, probe, limit_s, width)


def converse(
    nodes: Sequence[Node],
    transport: Transport,
    limits: Limits,
    verb: str,
    args: Callable[[Node], dict[str, Any]],
    talk: Callable[[PayloadStream, float], Answer],
    *,
    timeout_s: float,
    width: int,
    **options: Any,
) -> Fanout[Answer]:
    """A fan-out whose values are what `talk(stream, connect_s)` returns; nothing runs before it.

    `timeout_s` is for one node after connecting; `options` are those of `payload.stream`.
    """

    def work(node: Node, connection: Connection, connect_s: float) -> Answer:
        with session(connection, verb, args(node), **options) as stream:
            return talk(stream, connect_s)

    return _on_connections(nodes, transport, limits, work, timeout_s, width)


def _on_connections(
    nodes: Sequence[Node],
    transport: Transport,
    limits: Limits,
    work: Callable[[Node, Connection, float], Answer],
    timeout_s: float,
    width: int,
) -> Fanout[Answer]:
    def connect(node: Node, progress: Progress) -> Answer:
        started = time.monotonic()
        with closing(transport.connect(node, limits, progress)) as connection:
            return work(node, connection, time.monotonic() - started)

    deadline_s = sweep_deadline_s(len(nodes), limits, timeout_s, width)
    return Fanout(nodes, connect, deadline_s=deadline_s, width=width)


@contextmanager
def session(
    connection: Connection, verb: str, args: dict[str, Any], **options: Any
) -> Iterator[PayloadStream]:
    """`payload.stream`, whose end within the block is a `TransportError` with the reason."""
    with payload.stream(connection, verb, args, **options) as stream:
        try:
            yield stream
        except EOFError:
            raise TransportError("command", stream.end_reason()) from None


def tool_timeout(limits: Limits) -> float:
    """Seconds for one tool of the census: two in a row and the transfer fit the command limit."""
    return min(10.0, limits.command_s / 3)
