"""Ends what is left of a run on nodes that could not be asked, as soon as they can be.

A node that was cut off may keep its ranks for hours; the run has gone on without it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from clusterctl.launch.plan import LaunchPlan
from clusterctl.launch.restart.between import not_clean
from clusterctl.launch.state import Left
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster

EVERY_S = 30.0


class Cleaner:
    """Asks these nodes in the background while an attempt runs on others."""

    def __init__(self, plan: LaunchPlan, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self.clean: set[str] = set()  # nodes that are proved clean
        self._plan, self._cluster, self._nodes = plan, cluster, nodes
        self._stop = threading.Event()
        if nodes:
            threading.Thread(target=self._work, name="cleaner", daemon=True).start()

    def _work(self) -> None:
        left = list(self._nodes)
        while left and not self._stop.wait(EVERY_S):
            try:
                unclean: Collection[str] = not_clean(self._plan, replace(self._cluster, nodes=left))
            except Left:  # another head has the run: the attempt hears it, too
                return
            self.clean |= {node.name for node in left} - set(unclean)
            left = [node for node in left if node.name in unclean]

    def close(self) -> None:
        """Ask no more; waits for nothing."""
        self._stop.set()
