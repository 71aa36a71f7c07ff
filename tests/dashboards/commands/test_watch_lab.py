"""Real nodes over real sshd, real faults: each is one line of `clusterctl watch`, and its end another."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.equipment import Equipment

pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
]  # links and disks are looked at every so many seconds

WAIT_S = 240.0


class Watched:
    """The lines of a watch that runs."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.seen: list[tuple[str, str, tuple[str, ...]]] = []
        self._child = child
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(json.loads(line))

    def nodes(self, kind: str, id: str) -> set[str]:
        """Nodes of which this was told."""
        return {name for told, one, on in self.seen if (told, one) == (kind, id) for name in on}

    def wait_for(self, kind: str, id: str, *names: str) -> None:
        """Until it was told of all these nodes, together or one by one."""
        deadline = time.monotonic() + WAIT_S
        while not set(names) <= self.nodes(kind, id):
            assert time.monotonic() < deadline, (kind, id, names, self.seen)
            try:
                one = self._lines.get(timeout=1.0)
            except queue.Empty:
                continue
            if "alert" in one:
                alert = one["alert"]
                self.seen.append((one["type"], alert["id"], tuple(alert["nodes"])))


def test_faults_of_real_nodes_are_told_and_their_end_too(lab: Callable[..., Lab], tmp_path: Path) -> None:  # fmt: skip
    nodes = lab(4)
    equipped = [Equipment(node) for node in nodes.nodes]
    names = [node.name for node in nodes.nodes]
    command = [sys.executable, "-m", "clusterctl", "watch", "--json", "--check", "link,node.down,clock.step", str(nodes.hostfile)]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as child:
        watched = Watched(child)
        try:
            time.sleep(15)  # not for a condition: in this time a healthy cluster must say nothing
            equipped[0].cards("mlx5_4")
            nodes.nodes[1].drop_network()
            nodes.nodes[2].freeze()
            watched.wait_for("fire", "link.down", names[0])
            watched.wait_for("fire", "node.down", names[1], names[2])
            equipped[0].cards()
            nodes.nodes[1].restore()
            nodes.nodes[2].thaw()
            watched.wait_for("clear", "link.down", names[0])
            watched.wait_for("clear", "node.down", names[1], names[2])
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(WAIT_S)
            watched.thread.join(WAIT_S)
    assert child.returncode == 1
    # The second node's port was lost with its network, and is said to be back.
    assert names[0] in watched.nodes("fire", "link.down") <= {names[0], names[1]}
    assert watched.nodes("fire", "node.down") == {names[1], names[2]}
    assert {id for _, id, _ in watched.seen} == {"link.down", "node.down"}
