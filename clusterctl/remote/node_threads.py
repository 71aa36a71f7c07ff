"""A thread for each node over one connection, which is opened again when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult, unreachable
from clusterctl.transport.base import Connection, Progress

CLOSE_S = 3.0  # all connections together
F = TypeVar("F", bound="Followers")


class Pauses:
    """Seconds before connecting to one node again: 1, 2, 4, 8, 8 …"""

    def __init__(self, first_s: float = 1.0, most_s: float = 8.0, steady_s: float = 60.0) -> None:
        self._first_s, self._most_s, self._steady_s = first_s, most_s, steady_s
        self._next_s = first_s

    def after(self, lasted_s: float) -> float:
        """The pause after a connection or attempt of `lasted_s`: the first one if it was steady."""
        pause_s = self._first_s if lasted_s > self._steady_s else self._next_s
        self._next_s = min(self._most_s, 2 * pause_s)
        return pause_s


class Followers:
    """A base class. A context manager; leaving it closes the connections."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stop = threading.Event()
        self._logins = threading.BoundedSemaphore(cluster.width)
        self._open: dict[Node, Connection] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(node,), name=node.name, daemon=True)
            for node in cluster.nodes
        ]

    def talk(self, node: Node, connection: Connection) -> None:
        """Runs in the node's thread until `stop` is set; after an exception it is called again."""
        raise NotImplementedError

    def report(self, result: NodeResult[Any]) -> None:
        """Gets the exception of `talk`, or of connecting, as the node's result."""
        raise NotImplementedError

    def __enter__(self: F) -> F:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for connection in list(self._open.values()):  # an exchange ends now, not at its limit
            with suppress(TransportError, OSError):
                connection.close()
        join_all(self._threads, CLOSE_S)

    def _follow(self, node: Node) -> None:
        pauses = Pauses()
        while not self.stop.is_set():
            progress = Progress()
            started = time.monotonic()
            try:
                with self._logins:  # a thousand handshakes at once would all be too late
                    cluster = self.cluster
                    connection = cluster.transport.connect(node, cluster.limits, progress)
                with closing(connection):
                    self._open[node] = connection
                    self.talk(node, connection)
                return
            except Exception as error:  # noqa: BLE001 - node boundary: becomes the node's result
                why = unreachable(error, progress)
            finally:
                self._open.pop(node, None)
            lasted_s = time.monotonic() - started
            if not self.stop.is_set():
                self.report(NodeResult(node, None, why, lasted_s))
            self.stop.wait(pauses.after(lasted_s))


def start_thread(work: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def join_all(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for threads, `seconds` for all together."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
