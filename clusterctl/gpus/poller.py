"""The census again and again: each node is asked in its own time over a connection that stays open.

A node that hangs or dies keeps its row with the age of what is known; the others go on.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from checks.facts import NodeFacts
from clusterctl.errors import TransportError
from clusterctl.gpus.summary import WAITING, Census, read_node
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.backoff import Pauses
from clusterctl.remote.fanout import NodeResult
from clusterctl.transport.base import Connection, Limits, Progress, Transport, Unreachable

STALE_LOOKS = 3
GOODBYE_S = 3.0  # all threads together, at the end


class Looks:
    """The newest answer of each node. A context manager; leaving it closes the connections."""

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: Transport,
        limits: Limits,
        arguments: dict[str, Any],
        interval_s: float,
        width: int,
    ) -> None:
        self._nodes = list(nodes)
        self._transport, self._limits = transport, limits
        self._arguments, self._interval_s = arguments, interval_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._logins = threading.BoundedSemaphore(width)
        self._newest: dict[Node, tuple[NodeFacts, float]] = {}
        self._open: dict[Node, Connection] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(node,), name=f"gpus-{i}", daemon=True)
            for i, node in enumerate(self._nodes)
        ]

    def __enter__(self) -> Looks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with self._lock:
            connections = list(self._open.values())
        for connection in connections:  # a look that is under way ends at once, not at its limit
            with suppress(TransportError, OSError):
                connection.close()
        deadline = time.monotonic() + GOODBYE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def newest(self, now_s: float) -> tuple[list[NodeFacts], list[float | None]]:
        """Facts in the hostfile's order, and how many seconds old those are that should be newer."""
        with self._lock:
            known = dict(self._newest)
        facts, ages = [], []
        late_s = STALE_LOOKS * self._interval_s + 1.0
        for node in self._nodes:
            if node in known:
                one, at_s = known[node]
                facts.append(one)
                ages.append(now_s - at_s if now_s - at_s > late_s else None)
            else:
                why = Unreachable(WAITING, 0.0, "no answer yet")
                facts.append(read_node(NodeResult(node, None, why, 0.0)))
                ages.append(None)
        return facts, ages

    def all_answered(self) -> bool:
        with self._lock:
            return len(self._newest) == len(self._nodes)

    def _keep(self, result: NodeResult[dict[str, Any]]) -> None:
        facts = read_node(result)
        with self._lock:
            self._newest[result.node] = (facts, time.monotonic())

    def _follow(self, node: Node) -> None:
        pauses = Pauses()
        while not self._stop.is_set():
            progress = Progress()
            begun = time.monotonic()
            try:
                self._ask_forever(node, progress)
                return
            except TransportError as error:
                why = Unreachable(
                    error.phase, time.monotonic() - progress.since, str(error), error.hint
                )
            except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
                said = f"{type(error).__name__}: {error}"
                why = Unreachable(progress.phase, time.monotonic() - progress.since, said)
            if not self._stop.is_set():
                self._keep(NodeResult(node, None, why, time.monotonic() - begun))
            self._stop.wait(pauses.after(time.monotonic() - begun))

    def _ask_forever(self, node: Node, progress: Progress) -> None:
        with self._logins:  # a thousand handshakes at once would all be too late
            connection = self._transport.connect(node, self._limits, progress)
        try:
            with self._lock:
                self._open[node] = connection
            while not self._stop.is_set():
                begun = time.monotonic()
                answer = ship.probe(connection, "census", self._arguments, self._limits.command_s)
                self._keep(NodeResult(node, answer, None, time.monotonic() - begun))
                self._stop.wait(max(0.0, begun + self._interval_s - time.monotonic()))
        finally:
            with self._lock:
                self._open.pop(node, None)
            connection.close()


def mark_stale(census: Census, ages: Sequence[float | None]) -> Census:
    """`~ 17 s old` on the rows of nodes that should have answered again by now."""
    rows = [
        row
        if age_s is None
        else dataclasses.replace(row, flags=(f"~ {age_s:.0f} s old", *row.flags))
        for row, age_s in zip(census.rows, ages, strict=True)
    ]
    return dataclasses.replace(census, rows=tuple(rows))


def repeat(
    looks: Looks,
    interval_s: float,
    for_s: float | None,
    show: Callable[[list[NodeFacts], list[float | None]], int],
) -> int:
    """Call `show` each interval until the time is up or Ctrl-C; returns its last exit code, or 130.

    The first page comes when all nodes have answered, or after one interval.
    """
    begun = time.monotonic()
    code: int | None = None
    try:
        while not looks.all_answered() and time.monotonic() - begun < interval_s:
            time.sleep(0.05)
        while True:
            now_s = time.monotonic()
            code = show(*looks.newest(now_s))
            due = now_s + interval_s
            if for_s is not None and due > begun + for_s:
                return code
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return code if code else 130
