"""Messages of many nodes in one queue, bounded for each node."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

WAITING = 64  # messages of one node; an agent sends a dozen a second
WAITING_BYTES = 8 << 20  # of one node; one message more is let in


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """A message of a node; None with the reason when no more will come."""

    node: str
    data: dict[str, Any] | None
    why: str = ""
    is_wrong: bool = False  # what it sent cannot be true: not a connection that was lost
    is_given_up: bool = False  # it was not reached again in its time


class FromNode(Protocol):
    """What an inbox takes: whose it is, and what it holds."""

    @property
    def node(self) -> str: ...
    @property
    def data(self) -> dict[str, Any] | None: ...


M = TypeVar("M", bound=FromNode)


class Inbox(Generic[M]):
    """One queue in order of arrival. Each node has a thread that puts; one thread takes for all.

    Bounded for each node: one that sends more waits, because its thread puts no more, the window
    of its channel fills, and its payload blocks.
    """

    def __init__(self) -> None:
        self._waiting: list[M] = []
        self._count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, message: M) -> None:
        """Add a message; waits while its node has too many here."""
        name, data = message.node, message.data or {}
        # About the bytes that it holds: texts are the only large part of an agent's message.
        size = len(data.get("text", "")) + sum(map(len, data.get("tail", ())))
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_full(name))
            self._count[name] += 1
            self._bytes[name] += size
            self._waiting.append(message)
            self._changed.notify_all()

    def take(self, timeout_s: float) -> tuple[list[M], bool]:
        """All that waits, as soon as there is something, and whether a node's queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, timeout_s)
            is_full = any(map(self._is_full, self._count))
            taken, self._waiting = self._waiting, []
            self._count.clear()
            self._bytes.clear()
            self._changed.notify_all()
            return taken, is_full

    def _is_full(self, name: str) -> bool:
        return self._count[name] >= WAITING or self._bytes[name] >= WAITING_BYTES

    def close(self) -> None:
        """`put` waits no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
