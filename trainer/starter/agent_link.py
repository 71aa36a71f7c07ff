"""The conversation of a starter with the agent of its node: JSON lines over a unix socket.

The agent sends {"op": "start", "argv", "env", "more", "fail_grace_s"}: the whole command, the
variables that the launcher has decided, and those that differ between attempts. It is answered by
"accepted" or "refused" (with `why`), then gets a "rank" and an "ended" line of each rank, and
"over" after the last one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DESCRIPTOR = "CLUSTERCTL_STARTER_SOCKET"  # of the listening socket, which the agent has made


class AgentLink:
    """The agent that is connected; another can connect after it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._peer: socket.socket | None = None
        self._unread = b""
        listener.setblocking(False)

    @classmethod
    def from_environment(cls) -> AgentLink | None:
        """None where a person or another program has started this one."""
        number = os.environ.pop(DESCRIPTOR, None)
        if number is None:
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    @property
    def is_connected(self) -> bool:
        return self._peer is not None

    def descriptors(self) -> list[int]:
        """What is readable when there is something to do."""
        return [one.fileno() for one in (self._listener, self._peer) if one is not None]

    def accept(self, *, is_busy: bool) -> None:
        """Take the agent that has connected; one whose ranks run is not replaced."""
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            if is_busy and self._peer is not None:
                peer.close()
                return
            self._drop()
            self._peer = peer
            peer.setblocking(False)

    def orders(self) -> Iterator[dict[str, Any]]:
        """What the agent has sent since the last call; at its end it is no longer connected."""
        while self._peer is not None:
            try:
                data = self._peer.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._drop()
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    @property
    def asked_for_s(self) -> float:
        """Seconds since its file was last touched, by which a launch asks it to stand by."""
        with contextlib.suppress(OSError):
            return time.time() - self._pid_file.stat().st_mtime
        return math.inf

    @property
    def _pid_file(self) -> Path:
        return Path(self._listener.getsockname()).with_suffix(".pid")

    def send(self, kind: str, **message: Any) -> None:
        """To an agent that has gone nothing is sent."""
        if self._peer is None:
            return
        self._peer.settimeout(5.0)
        try:
            self._peer.sendall(json.dumps({"type": kind, **message}).encode() + b"\n")
            self._peer.setblocking(False)
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer, self._unread = None, b""

    def leave(self) -> None:
        """In a rank: both sockets are the starter's alone."""
        self._drop()
        self._listener.close()

    def close(self) -> None:
        """At the end: no agent is to find this starter any more."""
        path, pid_file = self._listener.getsockname(), self._pid_file
        self.leave()
        with contextlib.suppress(OSError):
            Path(path).unlink()
            pid_file.unlink()
