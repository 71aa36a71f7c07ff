"""Repeated census: a node that hangs or dies keeps its row with the age of what is known."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from checks import units
from checks.facts import NodeFacts
from clusterctl.gpus.summary import WAITING, Census
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.facts import read_node
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.node_threads import Followers
from clusterctl.transport.base import Connection, Unreachable

STALE_INTERVALS = 3


class Poller(Followers):
    """The newest answer of each node, which is asked at its own pace over an open connection."""

    def __init__(self, cluster: Cluster, arguments: dict[str, Any], interval_s: float) -> None:
        super().__init__(cluster)
        self._arguments, self._interval_s = arguments, interval_s
        self._lock = threading.Lock()
        why = Unreachable(WAITING, 0.0, "no answer yet")
        self._newest = {  # the time of an answer that has not come is infinite
            node: (read_node(NodeResult(node, None, why, 0.0)), math.inf) for node in cluster.nodes
        }

    def newest(self, now_s: float) -> tuple[list[NodeFacts], list[float | None]]:
        """Facts in the hostfile's order, and the age in seconds of those that should be newer."""
        with self._lock:
            newest = list(self._newest.values())
        late_s = STALE_INTERVALS * self._interval_s + 1.0
        ages = [now_s - at_s if now_s - at_s > late_s else None for _, at_s in newest]
        return [facts for facts, _ in newest], ages

    def all_answered(self) -> bool:
        with self._lock:
            return all(at_s < math.inf for _, at_s in self._newest.values())

    def report(self, result: NodeResult[Any]) -> None:
        facts = read_node(result)
        with self._lock:
            self._newest[result.node] = (facts, time.monotonic())

    def talk(self, node: Node, connection: Connection) -> None:
        command_s = self.cluster.limits.command_s
        while not self.stop.is_set():
            started = time.monotonic()
            answer = payload.probe(connection, "census", self._arguments, command_s)
            self.report(NodeResult(node, answer, None, time.monotonic() - started))
            self.stop.wait(max(0.0, started + self._interval_s - time.monotonic()))


def mark_stale(census: Census, ages: Sequence[float | None]) -> Census:
    """`~ 17 s old` on the rows of nodes that should have answered again by now."""
    rows = tuple(
        row
        if age_s is None
        else dataclasses.replace(row, flags=(f"~ {units.duration(age_s)} old", *row.flags))
        for row, age_s in zip(census.rows, ages, strict=True)
    )
    return dataclasses.replace(census, rows=rows)


def repeat(
    poller: Poller,
    interval_s: float,
    for_s: float | None,
    show: Callable[[list[NodeFacts], list[float | None]], int],
) -> int:
    """Call `show` each interval until the time is up or Ctrl-C; returns its last exit code, or 130.

    The first page comes when all nodes have answered, or after one interval.
    """
    started = time.monotonic()
    code: int | None = None
    try:
        while not poller.all_answered() and time.monotonic() - started < interval_s:
            time.sleep(0.05)
        while True:
            now_s = time.monotonic()
            code = show(*poller.newest(now_s))
            due = now_s + interval_s
            if for_s is not None and due > started + for_s:
                return code
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return code if code else 130
