"""Messages of nodes that wait to be processed, bounded for each node.

A node that sends more than is taken waits: its listener puts no more, the window of its channel
fills, and its payload blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

WAITING = 64  # messages of one node; an agent says a dozen a second
WAITING_BYTES = 8 << 20  # of one node; one message more is let in

T = TypeVar("T")


class Inbox(Generic[T]):
    """One queue in order of arrival. Each node has a thread that puts; one thread takes for all."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._waiting: list[T] = []
        self._count = dict.fromkeys(nodes, 0)
        self._bytes = dict.fromkeys(self._count, 0)
        self._changed = threading.Condition()
        self._closed = False

    def put(self, name: str, item: T, size: int = 0) -> None:
        """Add what `name` said, about `size` bytes; waits while it has too much here."""
        with self._changed:
            while self._is_full(name) and not self._closed:
                self._changed.wait()
            self._count[name] += 1
            self._bytes[name] += size
            self._waiting.append(item)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> tuple[list[T], bool]:
        """All that waits, as soon as there is something, and whether a node's queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, timeout_s)
            is_full = any(map(self._is_full, self._count))
            taken, self._waiting = self._waiting, []
            self._count = dict.fromkeys(self._count, 0)
            self._bytes = dict.fromkeys(self._count, 0)
            self._changed.notify_all()
            return taken, is_full

    def _is_full(self, name: str) -> bool:
        return self._count[name] >= WAITING or self._bytes[name] >= WAITING_BYTES

    def close(self) -> None:
        """Nobody waits to put any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
