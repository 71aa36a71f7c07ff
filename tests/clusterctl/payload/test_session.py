"""The agent's socket, to which a head connects."""

from __future__ import annotations

import errno
import json
import queue
import socket
from pathlib import Path

from clusterctl.payload.launch.session import HeadLink


class Listener(socket.socket):
    """Whose first `accept` fails, as on a machine that has too many open files."""

    fails = True

    def accept(self):  # type: ignore[no-untyped-def]
        if self.fails:
            self.fails = False
            raise OSError(errno.ENFILE, "Too many open files in system")
        return super().accept()


def test_agent_takes_the_next_head_when_one_could_not_be_taken(tmp_path: Path) -> None:
    orders: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
    with Listener(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as head:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(4)
        head.connect(str(tmp_path / "socket"))
        HeadLink(listener, "secret", orders, lambda: None)
        head.sendall(json.dumps({"word": "secret", "resume": None, "head": "h"}).encode() + b"\n")
        assert orders.get(timeout=10)["op"] == "connect"
        assert not listener.fails
