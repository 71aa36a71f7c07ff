"""The samplers of all nodes: orders go to a slot of a node, answers arrive in one queue."""

from __future__ import annotations

import queue
import secrets
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.inbox import Inbox
from clusterctl.remote.node_threads import Followers, start_thread
from clusterctl.remote.payload import PayloadStream
from clusterctl.serve.carry import Carrier
from clusterctl.transport.base import Connection

MESSAGES_S, BURST = 10, 500  # of one node; a sampler says a few words for each batch
SILENT_S = 30.0  # a node sends a sign of life every 2 s
HELLO_S = 30.0


@dataclass(frozen=True, slots=True)
class Message:
    """Of a node. `kind` is up (data: its hello), answer, ended (of one sampler: why), sent (an
    order that could not be given: why) or down (why)."""

    node: str
    kind: str
    slot: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    why: str = ""


class Samplers(Followers):
    """A connection to each node, made again with pauses when it is lost."""

    def __init__(self, cluster: Cluster, args: dict[str, Any], folders: list[Path]) -> None:
        """`folders` are those of the runs, in the order of the tokens in `args`."""
        super().__init__(cluster)
        self.inbox: Inbox[Message] = Inbox()
        self._args, self._folders, self._word = args, folders, secrets.token_hex(4)
        self._orders: dict[str, queue.SimpleQueue[tuple[int, dict[str, Any]] | None]] = {}

    def __exit__(self, *given: object) -> None:
        self.inbox.close()
        super().__exit__(*given)

    def send(self, node: str, slot: int, order: dict[str, Any]) -> None:
        """Waits for nothing; an order for a node that has just gone is lost with it."""
        if node in self._orders:
            self._orders[node].put((slot, order))

    def talk(self, node: Node, connection: Connection) -> None:
        limit_s = self.cluster.limits.command_s
        opened = payload.stream(connection, "sample", self._args, start_timeout_s=limit_s)
        with closing(opened) as stream:
            try:
                self._converse(node, connection, stream)
            except EOFError:
                raise TransportError("command", stream.end_reason()) from None
            finally:
                if orders := self._orders.pop(node.name, None):
                    orders.put(None)

    def _converse(self, node: Node, connection: Connection, stream: PayloadStream) -> None:
        hello = stream.answer(HELLO_S)
        if hello["type"] == "failed":
            raise TransportError("command", hello["why"])
        if len(hello["shared"]) != len(self._folders):
            raise TransportError("parse", "the node says nothing about some folders")
        orders = self._orders[node.name] = queue.SimpleQueue()
        carrier = Carrier(node, connection, hello, self._folders, self._word)
        start_thread(self._give, node, stream, orders, carrier)
        self.inbox.put(Message(node.name, "up", data=hello))
        allowed, since_s = float(BURST), time.monotonic()
        while not self.stop.is_set():
            message = stream.receive(SILENT_S)
            now = time.monotonic()
            allowed, since_s = min(BURST, allowed + MESSAGES_S * (now - since_s)) - 1, now
            if allowed < 0:
                why = f"it sends more than {MESSAGES_S} messages a second"
                raise TransportError("parse", why)
            if message is None:
                raise TransportError("command", f"no message for {units.duration(SILENT_S)}")
            if message["type"] == "failed":
                raise TransportError("command", message["why"])
            if message["type"] == "ended":
                self.inbox.put(Message(node.name, "ended", message["slot"], why=message["why"]))
            if message["type"] == "answer":
                try:
                    answer = carrier.after(message["answer"])
                except OSError as error:
                    raise TransportError("command", f"a video cannot be fetched: {error}") from None
                self.inbox.put(Message(node.name, "answer", message["slot"], answer))

    def _give(
        self,
        node: Node,
        stream: PayloadStream,
        orders: queue.SimpleQueue[tuple[int, dict[str, Any]] | None],
        carrier: Carrier,
    ) -> None:
        while (item := orders.get()) is not None:
            slot, order = item
            try:
                stream.send({"slot": slot, "order": carrier.before(order)})
            except Exception as error:  # noqa: BLE001 - node boundary: the order is lost
                why = Message(node.name, "sent", slot, {"id": order["id"]}, str(error))
                self.inbox.put(why)

    def report(self, result: NodeResult[Any]) -> None:
        assert result.unreachable is not None
        self.inbox.put(Message(result.node.name, "down", why=result.unreachable.sentence()))
