"""A transport on which some nodes are hostile: instead of running a payload they say what a test wants.

What they say goes the whole way from the first byte behind the channel on; only ssh itself is not there.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from clusterctl.nodes import Node
from clusterctl.remote.payload import MARKER
from clusterctl.transport.base import Connection, Limits, Progress, Transport

MARK = b"\n" + MARKER.encode() + b"\n"
# (verb, its arguments, orders that the head writes later) -> what the node writes to stdout, in chunks.
Orders = queue.SimpleQueue[bytes]
Says = Callable[[str, dict[str, Any], Orders], Iterable[bytes]]


def asked(stdin: bytes) -> tuple[str, dict[str, Any]]:
    """Verb and arguments of a request."""
    length, _, rest = stdin.partition(b"\n")
    given = json.loads(rest[int(length) :].partition(b"\n")[0])
    return given["verb"], given["args"]


def next_order(orders: Orders, timeout_s: float = 5.0) -> dict[str, Any] | None:
    """What the head writes next, {"op": "none"} when it says nothing for so long; None when it hung up."""
    try:
        data = orders.get(timeout=timeout_s)
    except queue.Empty:
        return {"op": "none"}
    return json.loads(data) if data else None


class HostileTransport:
    """`says` answers for the nodes it names; the others are reached through `real`."""

    def __init__(self, says: dict[str, Says], real: Transport) -> None:
        self._says, self._real = says, real

    def connect(self, node: Node, limits: Limits, progress: Progress) -> Connection:
        says = self._says.get(node.name)
        if says is None:
            return self._real.connect(node, limits, progress)
        return HostileConnection(says)


class HostileConnection:
    def __init__(self, says: Says) -> None:
        self._says = says

    def stream(self, command: str, stdin: bytes) -> HostileStream:
        orders: Orders = queue.SimpleQueue()
        return HostileStream(iter(self._says(*asked(stdin), orders)), orders)

    def close(self) -> None: ...


class HostileStream:
    """Reads as far as the reader asks, as a channel with a window does."""

    def __init__(self, chunks: Iterator[bytes], orders: Orders) -> None:
        self._chunks, self._orders = chunks, orders
        self._rest = b""
        self._is_over = False
        self._lock = threading.Lock()
        self.closed = threading.Event()

    def _more(self) -> bool:
        chunk = None if self.closed.is_set() else next(self._chunks, None)
        if chunk is None:
            self._is_over = True
            return False
        self._rest += chunk
        return True

    def read_line(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while b"\n" not in self._rest:
                if self._is_over or not self._more():
                    if not self._rest:
                        raise EOFError
                    line, self._rest = self._rest, b""
                    return line
                if time.monotonic() > deadline:
                    return None
            line, _, self._rest = self._rest.partition(b"\n")
            return line

    def read_some(self, limit: int) -> bytes:
        with self._lock:
            if not self._rest and (self._is_over or not self._more()):
                raise EOFError
            some, self._rest = self._rest[:limit], self._rest[limit:]
            return some

    def on_readable(self, call: Callable[[], None]) -> None:
        call()

    def write(self, data: bytes) -> None:
        self._orders.put(data)

    def close_stdin(self) -> None:
        self._orders.put(b"")

    def wait(self, timeout_s: float) -> int | None:
        return 0

    def kill(self) -> None: ...

    def stderr_tail(self) -> str:
        return "\x1b]52;c;cm0gLXJm\x07 the last word"

    def close(self) -> None:
        self.closed.set()
        self.close_stdin()
