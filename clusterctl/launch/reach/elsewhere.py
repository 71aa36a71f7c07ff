"""Whether this machine reaches any node that has no part in an attempt: its spares, for example."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import Fanout
from clusterctl.transport.base import Progress

VALID_S = 10.0  # of an answer, and the pause between two questions


class Elsewhere:
    """Asked in the background: nobody waits for it."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self._cluster, self._nodes = replace(cluster, nodes=nodes), nodes
        self._asked_s = self._answered_s = -math.inf

    def answers(self, now: float) -> bool:
        """Whether one has answered lately; `now` is a monotonic time."""
        if self._nodes and now - self._asked_s > VALID_S:
            self._asked_s = now
            threading.Thread(target=self._ask, args=(now,), name="elsewhere", daemon=True).start()
        return now - self._answered_s < VALID_S

    def _ask(self, now: float) -> None:
        cluster = self._cluster
        deadline_s = cluster.deadline_s(0.0)
        results = Fanout(self._nodes, self._connect, deadline_s=deadline_s, width=cluster.width)
        if any(result.unreachable is None for result in results):
            self._answered_s = now

    def _connect(self, node: Node, progress: Progress) -> None:
        self._cluster.transport.connect(node, self._cluster.limits, progress).close()
