"""The connection of a view to the supervisor of a run on this machine."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import CouldNotFindOut
from clusterctl.payload.launch.json_socket import JsonSocket
from trainer.runlog.json_file import parse_object

LINE_BYTES = 16 << 20
CONNECT_S = 5.0


def _message(line: bytes) -> dict[str, Any]:
    found = parse_object(line)
    if not isinstance(found.get("type"), str):
        raise ValueError("it has no type")
    return found


class Link:
    """Messages of a supervisor; `ended` once it has gone."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where nobody listens, or takes no connection within `CONNECT_S`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._link: Any = JsonSocket(self._socket)

    @property
    def ended(self) -> bool:
        return bool(self._link.is_gone)

    def _connect(self, path: str) -> None:
        """A supervisor that is stopped takes none, and its queue of them becomes full."""
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                self._socket.connect(path)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
            time.sleep(0.05)

    def take(self, timeout_s: float) -> list[dict[str, Any]]:
        """What has arrived, after `timeout_s` at the latest. Raises `CouldNotFindOut` for what no
        supervisor sends."""
        if self.ended or not self._selector.select(timeout_s):
            return []
        lines = self._link.lines()
        if len(self._link.unread) > LINE_BYTES:
            raise CouldNotFindOut("the supervisor sends a line without end")
        try:
            return [_message(line) for line in lines]
        except ValueError as error:
            raise CouldNotFindOut(f"the supervisor's message cannot be read: {error}") from None

    def about(self, timeout_s: float) -> dict[str, Any]:
        """Which run it supervises. Raises `CouldNotFindOut` where it does not say so in time."""
        return next(one for one in self._within(timeout_s) if one["type"] == "run")

    def first_state(self, timeout_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the run, its first state). Raises `CouldNotFindOut` where none comes in time."""
        messages = self._within(timeout_s)
        about = next(one for one in messages if one["type"] == "run")
        return about, next(one for one in messages if one["type"] == "state")

    def _within(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Messages as they arrive. Raises `CouldNotFindOut` at the end of the time or of them."""
        deadline = time.monotonic() + timeout_s
        while not self.ended and time.monotonic() < deadline:
            yield from self.take(0.1)
        raise CouldNotFindOut(f"the supervisor says nothing within {units.duration(timeout_s)}")

    def send(self, order: str) -> None:
        try:
            self._link.send({"op": order})
        except OSError:
            self._link.is_gone = True

    def close(self) -> None:
        self._selector.close()
        self._socket.close()
