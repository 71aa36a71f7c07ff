"""The agent's socket, to which a head connects."""

from __future__ import annotations

import errno
import json
import queue
import socket
from pathlib import Path

from clusterctl.payload.launch import session
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


def greet(path: Path, head: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(str(path))
    peer.sendall(json.dumps({"word": "secret", "resume": None, "head": head}).encode() + b"\n")
    return peer


def test_second_head_is_refused_while_the_first_speaks(tmp_path: Path, monkeypatch) -> None:
    """Two supervisors of one run would end each other's ranks: the agent decides."""
    orders: queue.SimpleQueue = queue.SimpleQueue()
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)
        link = HeadLink(listener, "secret", orders, lambda: None)
        first = greet(path, "ann@one, process 1")
        assert link.connect(orders.get(timeout=10))
        second = greet(path, "ann@two, process 2")
        second.sendall(b'{"op": "stop", "grace_s": 0}\n')
        assert not link.connect(orders.get(timeout=10))
        said = json.loads(second.makefile("rb").readline())
        assert said == {"type": "supervised", "head": "ann@one, process 1"}
        first.sendall(b'{"op": "ping"}\n')
        assert orders.get(timeout=10) == {"op": "ping"}  # and no stop before it
        # The first one comes back on another connection; then it falls silent, and hears why.
        again = greet(path, "ann@one, process 1")
        assert link.connect(orders.get(timeout=10))
        monkeypatch.setattr(session, "SPEAKS_S", 0.0)
        third = greet(path, "ann@two, process 2")
        assert link.connect(orders.get(timeout=10))
        said = json.loads(again.makefile("rb").readline())
        assert said == {"type": "supervised", "head": "ann@two, process 2"}
        for peer in (first, second, again, third):
            peer.close()
