"""What nodes say, waiting for the head: bounded for each node, so that none can drown the others.

A node that says more than is taken waits: its listener puts no more, its channel's window fills, and
its agent holds back what can wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

WAITING = 64  # messages of one node; an agent says a dozen a second
WAITING_BYTES = 8 << 20  # of one node; one message more is let in


@dataclass(frozen=True, slots=True)
class News:
    """A node's message; None with the reason when nothing more will come."""

    node: str
    message: dict[str, Any] | None
    why: str = ""


class Inbox:
    """One queue in order of arrival. Each node has a thread that puts; one thread takes for all."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._waiting: list[News] = []
        self._count = dict.fromkeys(nodes, 0)
        self._bytes = dict.fromkeys(self._count, 0)
        self._changed = threading.Condition()
        self._closed = False

    def put(self, news: News, size: int = 0) -> None:
        """Add a message of about `size` bytes; waits while its node has too much here."""
        name = news.node
        with self._changed:
            while self._is_full(name) and not self._closed:
                self._changed.wait()
            self._count[name] += 1
            self._bytes[name] += size
            self._waiting.append(news)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> tuple[list[News], bool]:
        """All that waits, as soon as there is something, and whether a node had more to say than fits."""
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
