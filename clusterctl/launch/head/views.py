"""Those who look at a run: each gets its state and events over a socket, and may give orders.

The supervisor never waits for them: a view that reads slowly gets newer states, and all events.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.dataclass_json import encode
from clusterctl.launch.head import wire
from clusterctl.launch.state import EVENTS, RunResult, RunState
from trainer.runlog.json_file import object_of

EVERY_S = 0.2  # between two states
SEND_S = 5.0  # for a view that does not read; then it is closed
LAST_S = 3.0  # for the result to reach the views
LOOK_S = 5.0  # between two checks that the socket can still be found
ORDERS = ("stop", "kill")


class Views:
    """Listens on a socket in the user's own folder; `on_order` gets "stop" or "kill"."""

    def __init__(
        self, find: Callable[[], Path], about: dict[str, Any], on_order: Callable[[str], None]
    ) -> None:
        """`find` gives the socket's path, also another one when its folder has been removed, as
        logind does after a user's last login."""
        self._find, self._about, self._on_order = find, about, on_order
        self._changed = threading.Condition()
        self._picture: dict[str, Any] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._count = 0  # of all events so far
        self._result: dict[str, Any] | None = None
        self._threads: list[threading.Thread] = []
        self._path, self._listener = self._open()
        self._accepts = threading.Thread(target=self._accept, name="views", daemon=True)
        self._accepts.start()

    def _open(self) -> tuple[Path, socket.socket]:
        path = self._find()
        path.unlink(missing_ok=True)  # of a supervisor that was killed: the lock is ours
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(16)
        listener.settimeout(LOOK_S)
        return path, listener

    def _renew(self) -> None:
        """Listen where views look, when the socket's folder has been removed."""
        with self._changed, suppress(OSError):  # no folder can be made: later
            if self._result is None and not self._path.exists():
                old = self._listener
                self._path, self._listener = self._open()
                old.close()

    def update(self, state: RunState) -> None:
        with self._changed:
            fresh = state.event_count - self._count
            self._events.extend(map(encode, list(state.events)[-fresh:] if fresh else ()))
            self._count = state.event_count
            self._picture = wire.picture(state)
            self._changed.notify_all()

    def end(self, result: RunResult) -> None:
        """Tell the result to all who look, and close."""
        with self._changed:
            self._result = encode(result)
            self._changed.notify_all()
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.settimeout(LAST_S)
            last.connect(str(self._path))  # behind those that wait to be accepted
            self._accepts.join(LAST_S)
        for thread in self._threads:
            thread.join(LAST_S)
        with suppress(OSError):
            self._path.unlink()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                self._renew()
                continue
            except OSError:  # closed at the end; before that too many open files, for example
                if self._result is not None:
                    return
                time.sleep(EVERY_S)
                continue
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            thread.start()  # before `end` can find it: a thread that has not begun cannot be joined
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            if self._result is not None:
                self._listener.setblocking(False)  # those that wait are the last ones

    def _serve(self, peer: socket.socket) -> None:
        peer.settimeout(SEND_S)
        gone = threading.Event()
        threading.Thread(target=self._hear, args=(peer.dup(), gone), daemon=True).start()
        told = 0
        with peer, suppress(OSError):
            _send(peer, {"type": "run", **self._about})
            while not gone.is_set():
                with self._changed:
                    self._changed.wait(EVERY_S)
                    fresh = min(self._count - told, len(self._events))
                    events = list(self._events)[-fresh:] if fresh else []
                    told, picture, result = self._count, self._picture, self._result
                if picture:
                    _send(peer, {"type": "state", "state": picture, "events": events})
                if result is not None:
                    _send(peer, {"type": "result", "result": result})
                    return
                gone.wait(EVERY_S)

    def _hear(self, peer: socket.socket, gone: threading.Event) -> None:
        peer.settimeout(None)
        with peer, suppress(OSError, ValueError), peer.makefile("rb") as lines:
            for line in lines:
                if (order := object_of(line).get("op")) in ORDERS:
                    self._on_order(order)
        gone.set()


def _send(peer: socket.socket, message: dict[str, Any]) -> None:
    peer.sendall(json.dumps(message, default=str).encode() + b"\n")
