"""Payload streams: one for a while, one that is reopened when lost, or one on each node at once.

A node that does not answer in time costs the others no more than that time. Closing a stream ends
its payload, and with it all that the payload started.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.backoff import Pauses
from clusterctl.remote.fanout import WIDTH, Fanout, NodeResult
from clusterctl.remote.inbox import Inbox
from clusterctl.remote.messages.active import misfit
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Connection, Limits, Progress, Transport, Unreachable

ROUND_TRIP_S = 3.0  # for an answer, on top of what the node may take
FLOOD_S = 0.05
CLOSE_S = 3.0  # all connections together
Answer = dict[str, Any]
Sweep = Callable[[Fanout[None], int], Iterator[NodeResult[None]]]


def sweep_deadline_s(count: int, limits: Limits, timeout_s: float, width: int) -> float:
    """For `count` nodes, `width` at a time, of which one may take `timeout_s` beyond connecting."""
    one_s = limits.tcp_s + limits.handshake_s + limits.channel_s + timeout_s
    return limits.run_s or one_s * max(1, math.ceil(count / width))


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
    """A fan-out whose values are what `talk(stream, connect_s)` returns; nothing starts before it.

    `timeout_s` is for one node after connecting; `options` are those of `payload.stream`.
    """

    def work(node: Node, progress: Progress) -> Answer:
        started = time.monotonic()
        connection = transport.connect(node, limits, progress)
        try:
            connect_s = time.monotonic() - started
            with session(connection, verb, args(node), **options) as stream:
                return talk(stream, connect_s)
        finally:
            connection.close()

    deadline_s = sweep_deadline_s(len(nodes), limits, timeout_s, width)
    return Fanout(nodes, work, deadline_s=deadline_s, width=width)


@contextmanager
def session(
    connection: Connection, verb: str, args: dict[str, Any], **options: Any
) -> Iterator[PayloadStream]:
    """`payload.stream`, whose end within the block is a `TransportError` that says why."""
    with payload.stream(connection, verb, args, **options) as stream:
        try:
            yield stream
        except EOFError:
            raise TransportError("command", stream.end_reason()) from None


class Followers:
    """A thread for each node that talks over one connection, and connects again when that is lost.

    `talk(node, connection)` runs until `stop` is set; what it raises goes to `lose` as the node's
    result. A context manager; leaving it closes the connections.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: Transport,
        limits: Limits,
        talk: Callable[[Node, Connection], None],
        lose: Callable[[NodeResult[Any]], None],
        *,
        width: int = WIDTH,
        pauses: Callable[[], Pauses] = Pauses,
    ) -> None:
        self.stop = threading.Event()
        self._transport, self._limits = transport, limits
        self._talk, self._lose, self._pauses = talk, lose, pauses
        self._logins = threading.BoundedSemaphore(width)
        self._lock = threading.Lock()
        self._open: dict[Node, Connection] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(node,), name=node.name, daemon=True)
            for node in nodes
        ]

    def __enter__(self) -> Followers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        with self._lock:
            connections = list(self._open.values())
        for connection in connections:  # an exchange under way ends now, not at its limit
            with suppress(TransportError, OSError):
                connection.close()
        _join(self._threads, CLOSE_S)

    def _follow(self, node: Node) -> None:
        pauses = self._pauses()
        while not self.stop.is_set():
            progress = Progress()
            started = time.monotonic()
            try:
                self._connect(node, progress)
                return
            except Exception as error:  # noqa: BLE001 - node boundary: becomes the node's result
                phase = error.phase if isinstance(error, TransportError) else progress.phase
                text = str(error)
                if not isinstance(error, TransportError):
                    text = f"{type(error).__name__}: {error}"
                hint = getattr(error, "hint", None)
                why = Unreachable(phase, time.monotonic() - progress.since, text, hint)
            lasted_s = time.monotonic() - started
            if not self.stop.is_set():
                self._lose(NodeResult(node, None, why, lasted_s))
            self.stop.wait(pauses.after(lasted_s))

    def _connect(self, node: Node, progress: Progress) -> None:
        with self._logins:  # a thousand handshakes at once would all be too late
            connection = self._transport.connect(node, self._limits, progress)
        try:
            with self._lock:
                self._open[node] = connection
            self._talk(node, connection)
        finally:
            with self._lock:
                self._open.pop(node, None)
            connection.close()


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """What a node sent; None with the reason when nothing more will come."""

    node: str
    data: dict[str, Any] | None
    why: str = ""


class SessionPool:
    """One payload on each node; all their messages arrive in `inbox`, until `close`.

    What is still being opened when `close` comes is closed, too.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: Transport,
        limits: Limits,
        width: int = WIDTH,
        *,
        verb: str = "active",
        args: Callable[[Node], dict[str, Any]] = lambda node: {},
        start_timeout_s: float = 10.0,
        inbox: Inbox[Any] | None = None,
        exit_s: float = 0.0,
    ) -> None:
        """`exit_s`: seconds that payloads get to end by themselves at `close`."""
        self.nodes = list(nodes)
        self.lost: dict[str, str] = {}  # nodes that cannot be asked any more, and why
        self.inbox = inbox or Inbox[NodeMessage](node.name for node in nodes)
        self._transport, self._limits, self._width = transport, limits, width
        self._verb, self._args = verb, args
        self._start_timeout_s, self._exit_s = start_timeout_s, exit_s
        self._lock = threading.Lock()
        self._closed = False
        self._open: dict[str, tuple[Connection, PayloadStream]] = {}
        self._number = 0

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        """Nodes that can be asked, in the hostfile's order."""
        return [node.name for node in self.nodes if node.name not in self.lost]

    def open(self) -> Fanout[None]:
        """A fan-out that starts the payload on every node."""
        limits = replace(self._limits, run_s=None)
        deadline_s = sweep_deadline_s(len(self.nodes), limits, self._start_timeout_s, self._width)
        return Fanout(self.nodes, self._start, deadline_s=deadline_s, width=self._width)

    def gather(self, sweep: Sweep | None = None) -> None:
        """Start the payload on every node; one that cannot be reached is lost."""
        fanout = self.open()
        for result in sweep(fanout, len(self.nodes)) if sweep else fanout:
            if result.unreachable is not None:
                self.lost[result.node.name] = result.unreachable.sentence()

    def _start(self, node: Node, progress: Progress) -> None:
        connection = self._transport.connect(node, self._limits, progress)
        try:
            progress.enter("start")
            stream = payload.stream(
                connection, self._verb, self._args(node), start_timeout_s=self._start_timeout_s
            )
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed and node.name not in self.lost:
                self._open[node.name] = (connection, stream)
                threading.Thread(target=self._listen, args=(node.name, stream), daemon=True).start()
                return
        _close(connection, stream, 0.0)  # too late: nobody waits for it any more

    def _listen(self, name: str, stream: PayloadStream) -> None:
        try:
            while True:
                message = stream.receive(3600.0)
                if message is not None:
                    self.inbox.put(name, NodeMessage(name, message), _size(message))
        except EOFError:
            why = stream.end_reason()
        except TransportError as error:
            why = f"{error.phase}: {error}"
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
            why = f"{type(error).__name__}: {error}"
        self.inbox.put(name, NodeMessage(name, None, why))

    def send(self, name: str, message: dict[str, Any]) -> None:
        """To a node whose stream is open. A broken connection is reported by the inbox."""
        with self._lock:
            opened = self._open.get(name)
        if opened is not None:
            with suppress(TransportError):
                opened[1].send(message)

    def send_all(self, message: dict[str, Any]) -> None:
        """The same to every node whose stream is open by now."""
        with self._lock:
            names = list(self._open)
        for name in names:
            self.send(name, message)

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
            self.send(name, {"timeout_s": timeout_s, **order, "id": number})
            waiting.add(name)
        deadline = time.monotonic() + timeout_s + ROUND_TRIP_S
        answers: dict[str, Answer] = {}
        while waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                for name in waiting:
                    self.lost[name] = f"no answer in {timeout_s + ROUND_TRIP_S:g} s"
                break
            arrived, is_full = self.inbox.take(left_s)
            for message in arrived:
                name, answer = message.node, message.data
                if answer is None:
                    self.lost.setdefault(name, message.why)
                elif name not in waiting or answer["id"] != number:
                    continue  # to an order that was given up, or one too many
                elif (wrong := misfit(orders[name], answer)) is not None:
                    self.lost[name] = f"its answer is not as it should be: {wrong}"
                else:
                    answers[name] = answer
                waiting.discard(name)
            if is_full:
                time.sleep(FLOOD_S)  # a node that floods gets no more of this program than that
        return answers

    def drop(self, name: str) -> None:
        """Close the stream of one node; waits for nothing."""
        with self._lock:
            opened = self._open.pop(name, None)
            self.lost.setdefault(name, "dropped")
        if opened is not None:
            threading.Thread(target=_close, args=(*opened, 0.0), daemon=True).start()

    def close(self) -> None:
        """End all payloads at once; those that do not end in time are left to their lease."""
        self.inbox.close()
        with self._lock:
            self._closed = True
            opened, self._open = self._open, {}
        threads = [
            threading.Thread(target=_close, args=(*one, self._exit_s), daemon=True)
            for one in opened.values()
        ]
        for thread in threads:
            thread.start()
        _join(threads, self._exit_s or CLOSE_S)


def _close(connection: Connection, stream: PayloadStream, exit_s: float) -> None:
    with suppress(TransportError, OSError, EOFError):
        if exit_s:
            stream.end_lease()
            stream.wait(exit_s - 1.0)  # it removes what it wrote before it goes
    for opened in (stream, connection):
        with suppress(TransportError, OSError):
            opened.close()


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _size(message: dict[str, Any]) -> int:
    """About how many bytes an agent's message holds: its texts, all that can be large in it."""
    return len(message.get("text", "")) + sum(map(len, message.get("tail", ())))
