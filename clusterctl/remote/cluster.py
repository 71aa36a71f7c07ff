"""The nodes of a command and how to reach them; one payload on all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.fanout import WIDTH, Fanout, NodeResult, in_order
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Connection, Limits, Progress, Transport

Values = dict[str, Any]
Answers = list[NodeResult[Values]]
Sweep = Callable[[Fanout[Any], int], Iterable[NodeResult[Any]]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """`width` nodes are talked to at once; `sweep` passes results on and shows the progress."""

    nodes: Sequence[Node]
    transport: Transport
    limits: Limits = field(default_factory=Limits)
    width: int = WIDTH
    sweep: Sweep = lambda fanout, total: fanout

    def deadline_s(self, timeout_s: float) -> float:
        """For all nodes, of which one may take `timeout_s` beyond connecting."""
        return self.limits.deadline_s(timeout_s, math.ceil(len(self.nodes) / self.width))

    def ask(
        self,
        verb: str,
        args: Values | Callable[[Node], Values],
        *,
        timeout_s: float | None = None,
        lease: bool = False,
        sudo: bool = False,
    ) -> Answers:
        """The nodes' answers to a payload verb, in the order of the nodes.

        `timeout_s` bounds one node's answer (default: the command limit); `sudo` runs as root.
        """
        limit_s = self.limits.command_s if timeout_s is None else timeout_s

        def probe(node: Node, connection: Connection, _: float) -> Values:
            given = args(node) if callable(args) else args
            return payload.probe(connection, verb, given, limit_s, lease=lease, sudo=sudo)

        return in_order(self.nodes, self._on_connections(probe, limit_s))

    def converse(
        self,
        verb: str,
        args: Callable[[Node], Values],
        talk: Callable[[PayloadStream, float], Values],
        *,
        timeout_s: float,
        **options: Any,
    ) -> Iterable[NodeResult[Values]]:
        """What `talk(stream, connect_s)` returns for each node, as it arrives.

        `timeout_s` is for one node after connecting; `options` are those of `payload.stream`.
        """

        def work(node: Node, connection: Connection, connect_s: float) -> Values:
            with session(connection, verb, args(node), **options) as stream:
                return talk(stream, connect_s)

        return self._on_connections(work, timeout_s)

    def _on_connections(
        self, work: Callable[[Node, Connection, float], Values], timeout_s: float
    ) -> Iterable[NodeResult[Values]]:
        def connect(node: Node, progress: Progress) -> Values:
            started = time.monotonic()
            with closing(self.transport.connect(node, self.limits, progress)) as connection:
                return work(node, connection, time.monotonic() - started)

        deadline_s = self.deadline_s(timeout_s)
        fanout = Fanout(self.nodes, connect, deadline_s=deadline_s, width=self.width)
        return self.sweep(fanout, len(self.nodes))


@contextmanager
def session(
    connection: Connection, verb: str, args: Values, **options: Any
) -> Iterator[PayloadStream]:
    """`payload.stream`, whose end within the block is a `TransportError` with the reason."""
    with closing(payload.stream(connection, verb, args, **options)) as stream:
        try:
            yield stream
        except EOFError:
            raise TransportError("command", stream.end_reason()) from None
