"""One resident payload on each node: orders go out together, answers come back until a deadline.

A node that does not answer in time costs the others nothing more than that time, and from then on it
is out of the crew. Leaving the context ends all payloads, and with them all that they started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.fanout import Fanout, NodeResult
from clusterctl.remote.inbox import Inbox
from clusterctl.remote.messages.active import misfit
from clusterctl.transport.base import Connection, Limits, Progress, Transport

ON_THE_WAY_S = 3.0  # for an answer, on top of what the node may take
FLOOD_S = 0.05
GOODBYE_S = 10.0  # all nodes together, at the end: they remove what they wrote
Answer = dict[str, Any]
Sweep = Callable[[Fanout[None], int], Iterator[NodeResult[None]]]


class Crew:
    """`ask` talks to nodes by name. `lost` holds why a node cannot be asked any more."""

    def __init__(
        self, nodes: Sequence[Node], transport: Transport, limits: Limits, width: int
    ) -> None:
        self.nodes = list(nodes)
        self.lost: dict[str, str] = {}
        self._transport, self._limits, self._width = transport, limits, width
        self._lock = threading.Lock()
        self._closed = False
        self._open: dict[str, tuple[Connection, ship.PayloadStream]] = {}
        self._inbox = Inbox[tuple[str, Answer | str]](node.name for node in nodes)
        self._number = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        """Nodes that can be asked, in the hostfile's order."""
        return [node.name for node in self.nodes if node.name not in self.lost]

    def gather(self, sweep: Sweep | None = None) -> None:
        """Start the payload on every node; who cannot be reached is lost."""
        one_s = self._limits.tcp_s + self._limits.handshake_s + self._limits.channel_s + 10.0
        waves = -(-len(self.nodes) // max(1, self._width))
        fanout = Fanout(self.nodes, self._start, deadline_s=one_s * waves, width=self._width)
        for result in sweep(fanout, len(self.nodes)) if sweep else fanout:
            if result.unreachable is not None:
                self.lost[result.node.name] = result.unreachable.sentence()

    def _start(self, node: Node, progress: Progress) -> None:
        connection = self._transport.connect(node, self._limits, progress)
        try:
            progress.enter("start")
            held = ship.stream(connection, "active", {})
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                self._open[node.name] = (connection, held)
                threading.Thread(target=self._hear, args=(node.name, held), daemon=True).start()
                return
        held.close()  # too late: the others have gone on, or home
        connection.close()

    def _hear(self, name: str, held: ship.PayloadStream) -> None:
        try:
            while True:
                message = held.receive(3600.0)
                if message is not None:
                    self._inbox.put(name, (name, message))
        except EOFError:
            said = held.stderr_tail().strip().splitlines()
            self._inbox.put(name, (name, f"its payload ended: {said[-1] if said else 'no word'}"))
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
            self._inbox.put(name, (name, f"the connection is gone: {error}"))

    def ask(self, orders: Mapping[str, Mapping[str, Any]], timeout_s: float) -> dict[str, Answer]:
        """Send each node its order and wait; an answer has `error` where the node could not do it.

        A node that is lost on the way, or gives no answer within `timeout_s` and a little for the
        way, is missing in the result and stands in `lost`.
        """
        self._number += 1
        number = self._number
        waiting = set()
        for name, order in orders.items():
            if name in self.lost or name not in self._open:
                self.lost.setdefault(name, "not reached")
                continue
            try:
                self._open[name][1].send({"timeout_s": timeout_s, **order, "id": number})
                waiting.add(name)
            except TransportError as error:
                self.lost[name] = f"the connection is gone: {error}"
        deadline = time.monotonic() + timeout_s + ON_THE_WAY_S
        answers: dict[str, Answer] = {}
        while waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                for name in waiting:
                    self.lost[name] = f"no answer in {timeout_s + ON_THE_WAY_S:g} s"
                break
            arrived, is_full = self._inbox.take(left_s)
            for name, said in arrived:
                if name not in waiting and isinstance(said, dict):
                    continue  # to an order that was given up, or one too many
                if isinstance(said, str):
                    self.lost.setdefault(name, said)
                elif said["id"] != number:
                    continue
                elif (wrong := misfit(orders[name], said)) is not None:
                    self.lost[name] = f"its answer is not as it should be: {wrong}"
                else:
                    answers[name] = said
                waiting.discard(name)
            if is_full:
                time.sleep(FLOOD_S)  # a node that floods gets no more of this program than that
        return answers

    def close(self) -> None:
        """End all payloads at once; those that do not end in time are left to their lease."""
        self._inbox.close()
        with self._lock:
            self._closed = True
            members = list(self._open.values())
            self._open.clear()
        threads = [threading.Thread(target=_part, args=one, daemon=True) for one in members]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + GOODBYE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _part(connection: Connection, held: ship.PayloadStream) -> None:
    with suppress(TransportError, OSError, EOFError):
        held.end_lease()
        held.wait(GOODBYE_S - 1.0)  # it removes what it wrote before it goes
    with suppress(TransportError, OSError):
        held.close()
    with suppress(TransportError, OSError):
        connection.close()
