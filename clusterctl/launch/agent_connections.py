"""The open channels of a launch: one agent on each node, one listener each, one inbox for all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.launch.plan import LaunchPlan, Share
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.fanout import WIDTH, Fanout, NodeResult
from clusterctl.remote.inbox import Inbox
from clusterctl.transport.base import Connection, Limits, Progress, Transport


@dataclass(frozen=True, slots=True)
class Wire:
    """One node's open channel."""

    share: Share
    connection: Connection
    stream: ship.PayloadStream

    def send(self, message: dict[str, Any]) -> None:
        """A broken line is not reported here: the listener sees it too."""
        try:
            self.stream.send(message)
        except TransportError:
            pass

    def close(self) -> None:
        self.stream.close()
        self.connection.close()


@dataclass(frozen=True, slots=True)
class News:
    """A node's message; None with the reason when nothing more will come."""

    node: str
    message: dict[str, Any] | None
    why: str = ""


class Wires:
    """All channels by node name. What is still being opened when `close` comes is closed, too."""

    def __init__(self, plan: LaunchPlan, transport: Transport, limits: Limits) -> None:
        self._plan, self._transport, self._limits = plan, transport, limits
        self._shares = {share.node: share for share in plan.shares}
        self._open: dict[str, Wire] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.inbox = Inbox[News](share.node.name for share in plan.shares)

    def open(self, meanwhile: Callable[[], None]) -> list[NodeResult[None]]:
        """Start an agent on every node; returns the nodes where that failed.

        Calls `meanwhile` several times a second, which may raise to give up: a node that does not
        answer must not hold a Ctrl-C up for its whole timeout.
        """
        deadline_s = self._limits.tcp_s + self._limits.handshake_s + self._plan.timing.hello_s
        waves = -(-len(self._shares) // WIDTH)
        fanout = Fanout(self._plan.nodes, self._dial, deadline_s=deadline_s * waves, width=WIDTH)
        arrived: queue.SimpleQueue[NodeResult[None] | None] = queue.SimpleQueue()

        def sweep() -> None:
            for result in fanout:
                arrived.put(result)
            arrived.put(None)

        threading.Thread(target=sweep, name="dial", daemon=True).start()
        lost: list[NodeResult[None]] = []
        while True:
            try:
                result = arrived.get(timeout=0.1)
            except queue.Empty:
                meanwhile()
                continue
            if result is None:
                return lost
            if result.unreachable is not None:
                lost.append(result)

    def _dial(self, node: Node, progress: Progress) -> None:
        share = self._shares[node]
        connection = self._transport.connect(node, self._limits, progress)
        try:
            args, patience_s = self._plan.agent_args(share), self._plan.timing.hello_s
            stream = ship.stream(connection, "agent", args, start_timeout_s=patience_s)
        except BaseException:
            connection.close()
            raise
        wire = Wire(share, connection, stream)
        with self._lock:
            if not self._closed:
                self._open[node.name] = wire
        if self._closed:
            wire.close()

    def listen(self) -> None:
        """From now on everything that nodes say goes to the inbox."""
        for name, wire in self._open.items():
            threading.Thread(target=self._listen, args=(name, wire), daemon=True).start()

    def _listen(self, name: str, wire: Wire) -> None:
        while True:
            try:
                message = wire.stream.receive(1.0)
            except EOFError:
                self.inbox.put(name, News(name, None, _last_words(wire)))
                return
            except TransportError as error:
                self.inbox.put(name, News(name, None, f"{error.phase}: {error}"))
                return
            if message is not None:
                self.inbox.put(name, News(name, message), _size(message))

    def send(self, message: dict[str, Any]) -> None:
        """The same to every node whose channel is open by now."""
        with self._lock:
            wires = list(self._open.values())
        for wire in wires:
            wire.send(message)

    def __iter__(self) -> Iterator[tuple[str, Wire]]:
        """(node name, wire) in the plan's order."""
        return iter(
            [(n.name, self._open[n.name]) for n in self._plan.nodes if n.name in self._open]
        )

    def close(self) -> None:
        """End every agent's lease. Idempotent."""
        self.inbox.close()
        with self._lock:
            self._closed = True
            wires, self._open = self._open, {}
        for wire in wires.values():
            wire.close()


def _size(message: dict[str, Any]) -> int:
    """About how many bytes it holds: its texts, which are all that can be large."""
    tail = message.get("tail", ())
    return len(message.get("text", "")) + sum(map(len, tail))


def _last_words(wire: Wire) -> str:
    lines = [line for line in wire.stream.stderr_tail().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "its agent has ended"
