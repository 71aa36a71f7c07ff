"""One payload stream on each node, and the messages of all of them in one inbox.

A late node costs the others no more than its time limit. Closing a stream ends its payload.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from checks import units
from clusterctl.errors import NoAnswer, TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import Fanout
from clusterctl.remote.inbox import Inbox, NodeMessage
from clusterctl.remote.node_threads import CLOSE_S, join_all, start_thread
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Connection, Progress

ROUND_TRIP_S = 3.0  # for an answer, on top of what the node may take
FLOOD_S = 0.05
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0  # between tries to connect once more
# Keys of an answer without an error, by the order; for `files` and `work` by the task in it.
_NEEDED = {
    "start": ("ranks",),
    "work": ("answers",),
    "listen": ("port", "addresses"),
    "probe": ("why",),
    "write": ("seconds",),
    "watch": ("seen_s",),
    "read": ("bytes", "seconds"),
    "matmul": ("model", "tflops", "finite"),
    "products": ("kin", "products", "side"),
    "lines": ("rows", "columns"),
    "values": ("found",),
    "copies": ("kin", "steps", "wrong", "sum"),
    "between": ("kin", "steps", "wrong"),
    "host": ("port",),
    "group": ("reduce_s",),
}
# Lists of equal length: one of the answer, one of its order.
_PAIRS = {"start": ("ranks", "devices"), "work": ("answers", "orders"), "probe": ("why", "where")}
Answer = dict[str, Any]


class SessionPool:
    """One payload on each node; all messages arrive in `inbox`. Late streams are closed."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        verb: str = "active",
        args: Callable[[Node], dict[str, Any]] = lambda node: {},
        start_timeout_s: float = 10.0,
        inbox: Inbox[NodeMessage] | None = None,
        exit_s: float = 0.0,
    ) -> None:
        """`exit_s`: seconds that payloads get to end by themselves at `close`."""
        self.lost: dict[str, str] = {}  # nodes that cannot be asked any more, and why
        self.begun: set[str] = set()  # nodes where a payload may have begun
        self.inbox: Inbox[NodeMessage] = inbox or Inbox()
        self.cluster = cluster
        self._verb, self._args = verb, args
        self._start_timeout_s, self._exit_s = start_timeout_s, exit_s
        self._lock = threading.Lock()
        self._closed, self._number = threading.Event(), 0
        self._open: dict[str, tuple[Connection, PayloadStream]] = {}
        self._again: set[str] = set()  # nodes that are being connected once more
        self._pauses: dict[str, float] = {}  # before the next try; none once a stream has spoken
        # Of these, what the last try to connect has met: why there was no sign of life; "" where
        # only ssh was missing, as while sshd starts; None where ssh has answered.
        self.silence: dict[str, str | None] = {}

    @property
    def names(self) -> list[str]:
        """Nodes that can be asked, in the hostfile's order."""
        return [node.name for node in self.cluster.nodes if node.name not in self.lost]

    def open(self, meanwhile: Callable[[], None] = lambda: None) -> Fanout[None]:
        cluster = replace(self.cluster, limits=replace(self.cluster.limits, run_s=None))
        deadline_s, width = cluster.deadline_s(self._start_timeout_s), cluster.width
        return Fanout(
            cluster.nodes, self._start, deadline_s=deadline_s, width=width, meanwhile=meanwhile
        )

    def gather(self) -> None:
        """Start the payload on every node; one that cannot be reached is lost."""
        for result in self.cluster.sweep(self.open(), len(self.cluster.nodes)):
            if result.unreachable is not None:
                self.lost[result.node.name] = result.unreachable.sentence()

    def _start(self, node: Node, progress: Progress) -> None:
        connection = self.cluster.transport.connect(node, self.cluster.limits, progress)
        if node.name in self._again:
            self.silence[node.name] = None
        try:
            progress.enter("start")
            args, timeout_s = self._args(node), self._start_timeout_s
            self.begun.add(node.name)
            stream = payload.stream(connection, self._verb, args, start_timeout_s=timeout_s)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._closed.is_set() and node.name not in self.lost:
                self._open[node.name] = (connection, stream)
                self._again.discard(node.name)
                start_thread(self._listen, node.name, stream)
                return
        _close(connection, stream, 0.0)  # too late

    def _listen(self, name: str, stream: PayloadStream) -> None:
        try:
            while True:
                message = stream.receive(3600.0)
                if self._is_replaced(name, stream):
                    return
                self._pauses.pop(name, None)
                if message is not None:
                    self.inbox.put(NodeMessage(name, message))
        except EOFError:
            why, is_wrong = stream.end_reason(), False
        except TransportError as error:
            why, is_wrong = f"{error.phase}: {error}", error.phase == "parse"
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
            why, is_wrong = f"{type(error).__name__}: {error}", True
        if not self._is_replaced(name, stream):
            self.inbox.put(NodeMessage(name, None, why, is_wrong))

    def _is_replaced(self, name: str, stream: PayloadStream) -> bool:
        with self._lock:
            return name in self._again or self._open.get(name, (None, stream))[1] is not stream

    def reconnect(self, node: Node, until_s: float) -> None:
        """Start its payload once more, with pauses, until a monotonic time; waits for nothing.

        What the old stream still sends is dropped. If that fails, the inbox says why; a new stream
        that ends before it has said anything counts as a try that has failed.
        """
        with self._lock:
            opened = self._open.pop(node.name, None)
            is_under_way = node.name in self._again
            self._again.add(node.name)
            self.silence.pop(node.name, None)
        if opened is not None:
            start_thread(_close, *opened, 0.0)
        if not is_under_way:
            start_thread(self._try_again, node, until_s)

    def _try_again(self, node: Node, until_s: float) -> None:
        name = node.name
        while not self._closed.wait(self._pauses.get(name, 0.0)):
            pause_s = min(2 * self._pauses.get(name, FIRST_PAUSE_S / 2), LONGEST_PAUSE_S)
            self._pauses[name] = pause_s
            try:
                self._start(node, Progress())
                return
            except TransportError as error:
                why = f"{error.phase}: {error}"
                is_refused = error.phase == "tcp"
                met = str(error) if isinstance(error, NoAnswer) else "" if is_refused else None
                self.silence[name] = met
            except Exception as error:  # noqa: BLE001 - node boundary
                why = f"{type(error).__name__}: {error}"
            if time.monotonic() + pause_s > until_s:
                text = f"it cannot be reached again: {why}"
                self.inbox.put(NodeMessage(name, None, text, is_given_up=True))
                return

    def send(self, name: str, message: dict[str, Any]) -> None:
        """To a node whose stream is open. A broken connection is reported by the inbox."""
        with self._lock:
            opened = self._open.get(name)
        if opened is not None:
            with suppress(TransportError):
                opened[1].send(message)

    def send_all(self, message: dict[str, Any]) -> None:
        with self._lock:
            names = list(self._open)
        for name in names:
            self.send(name, message)

    def ask(self, orders: Mapping[str, Mapping[str, Any]], timeout_s: float) -> dict[str, Answer]:
        """Send each node its order and wait; an answer has `error` where the node could not do it.

        Nodes without an answer within `timeout_s` and the round trip have their reason in `lost`.
        """
        self._number += 1
        waiting = set()
        for name, order in orders.items():
            if name in self.lost or name not in self._open:
                self.lost.setdefault(name, "not reached")
                continue
            self.send(name, {"timeout_s": timeout_s, **order, "id": self._number})
            waiting.add(name)
        deadline = time.monotonic() + timeout_s + ROUND_TRIP_S
        answers: dict[str, Answer] = {}
        while waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self.lost |= dict.fromkeys(
                    waiting, f"no answer in {units.duration(timeout_s + ROUND_TRIP_S)}"
                )
                break
            arrived, is_full = self.inbox.take(left_s)
            for message in arrived:
                name, answer = message.node, message.data
                if answer is None:
                    self.lost.setdefault(name, message.why)
                elif name not in waiting or answer["id"] != self._number:
                    continue  # to an order that was given up, or one too many
                elif (wrong := _misfit(orders[name], answer)) is not None:
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
            start_thread(_close, *opened, 0.0)

    def close(self) -> None:
        """End all payloads at once; those that do not end in time are left to their lease."""
        self.inbox.close()
        self._closed.set()
        with self._lock:
            opened, self._open = self._open, {}
        threads = [start_thread(_close, *one, self._exit_s) for one in opened.values()]
        join_all(threads, self._exit_s or CLOSE_S)


def _close(connection: Connection, stream: PayloadStream, exit_s: float) -> None:
    with suppress(TransportError, OSError, EOFError):
        if exit_s:
            stream.channel.close_stdin()
            stream.channel.wait(exit_s - 1.0)  # it removes its files before it ends
    for opened in (stream, connection):
        with suppress(TransportError, OSError):
            opened.close()


def _misfit(order: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
    """What is wrong with an answer to `order`; None when it fits or reports an error."""
    if answer.get("error"):
        return None
    op = order["op"]
    wrong = _missing(order["ask"]["do"] if op == "files" else op, answer)
    if wrong is None and op in _PAIRS:
        found, wanted = _PAIRS[op]
        if len(answer[found]) != len(order[wanted]):
            return f"{found} should be {len(order[wanted])}, are {len(answer[found])}"
    if wrong is None and op == "work":
        for job, one in zip(order["orders"], answer["answers"], strict=True):
            wrong = wrong or (None if one.get("error") else _missing(job["do"], one))
    return wrong


def _missing(task: str, answer: Mapping[str, Any]) -> str | None:
    missing = (name for name in _NEEDED.get(task, ()) if name not in answer)
    return next((f"{name} should be there" for name in missing), None)
