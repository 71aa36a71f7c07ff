"""Which node answers which question, when any node may be lost. No IO.

A node gets as many questions as it has capacity for, new ones as it answers. Questions of a lost
node go to others. An answer that a file cannot be read is doubted: another node is asked before it
counts, since one node's missing mount must not make good clips bad; a node that is often wrong in
this is left out. A node that still starts counts as another: the question waits until it joins or
is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_MISTAKES = 5  # files that a node could not read and another could


@dataclass(slots=True)
class Ask:
    """A question and who could not answer it well."""

    question: dict[str, Any]
    tried: dict[str, dict[str, Any]] = field(default_factory=dict)  # node -> its answer


@dataclass(slots=True)
class Worker:
    """A node that answers."""

    capacity: int
    open: dict[int, Ask] = field(default_factory=dict)
    answered: int = 0
    mistakes: list[str] = field(default_factory=list)  # its errors about files others could read


class WorkQueue:
    """All questions and nodes of one run."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        """`nodes` are expected: each will join or be lost."""
        self._expected = set(nodes)
        self.workers: dict[str, Worker] = {}
        self.gone: dict[str, Worker] = {}
        self._waiting: deque[Ask] = deque()
        self._doubted: list[Ask] = []  # a node could not read the file; another is asked first
        self._turns: dict[str, None] = {}  # nodes that may have capacity, the next one first
        self._unsound: list[str] = []

    def add(self, question: dict[str, Any]) -> None:
        """A new question, with a number as its "id"."""
        self._waiting.append(Ask(question))

    def join(self, node: str, capacity: int) -> None:
        """A node can have `capacity` questions at a time."""
        self._expected.discard(node)
        self.workers[node] = Worker(capacity)
        self._turns[node] = None

    def lose(self, node: str) -> None:
        """A node answers no more; what it had goes to the front. Idempotent."""
        self._expected.discard(node)
        worker = self.workers.pop(node, None)
        if worker is None:
            return
        self.gone[node] = worker
        self._turns.pop(node, None)
        for ask in reversed(worker.open.values()):
            (self._doubted.append if ask.tried else self._waiting.appendleft)(ask)
        worker.open = {}

    def assign(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """What to send to whom now; nodes with capacity take turns."""
        sent: dict[str, list[dict[str, Any]]] = {}
        self._doubted = [ask for ask in self._doubted if not self._send(ask, sent)]
        while self._waiting and self._send(self._waiting[0], sent):
            self._waiting.popleft()
        return list(sent.items())

    def _send(self, ask: Ask, sent: dict[str, list[dict[str, Any]]]) -> bool:
        for name in self._turns:
            worker = self.workers[name]
            if name not in ask.tried and len(worker.open) < worker.capacity:
                break
        else:
            return False
        worker.open[ask.question["id"]] = ask
        del self._turns[name]
        # At the end; a full one comes back with its next answer.
        if len(worker.open) < worker.capacity:
            self._turns[name] = None
        sent.setdefault(name, []).append(ask.question)
        return True

    def answer(self, node: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """A node's answer to one question; returns what counts now."""
        worker = self.workers.get(node)
        ask = worker.open.pop(answer["id"], None) if worker else None
        if worker is None or ask is None:
            return []  # it was given to another meanwhile
        worker.answered += 1
        self._turns[node] = None
        if "error" in answer:
            ask.tried[node] = answer
            if self._has_others(ask):
                self._doubted.append(ask)
                return []
            return [next(iter(ask.tried.values()))]
        for name, before in ask.tried.items():
            doubted = self.workers.get(name) or self.gone.get(name)
            if doubted is not None:
                doubted.mistakes.append(f"{ask.question['path']}: {before['error']}")
                if len(doubted.mistakes) == MAX_MISTAKES:
                    self._unsound.append(name)
        return [answer]

    def final_results(self) -> list[dict[str, Any]]:
        """Answers that count although they are doubted: no other node is left to ask."""
        last = [ask for ask in self._doubted if not self._has_others(ask)]
        self._doubted = [ask for ask in self._doubted if self._has_others(ask)]
        return [next(iter(ask.tried.values())) for ask in last]

    def unsound(self) -> list[str]:
        """Nodes that could not read what others could, too often."""
        self._unsound = [name for name in self._unsound if name in self.workers]
        return self._unsound

    def _has_others(self, ask: Ask) -> bool:
        others = (self.workers.keys() | self._expected) - ask.tried.keys()
        return len(ask.tried) < 2 and bool(others)
