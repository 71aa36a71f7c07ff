"""Do one thing on many nodes: bounded threads, results as they arrive, one deadline for all."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from checks import units
from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Progress, Unreachable

T = TypeVar("T")
Why = Unreachable | None

# 64 handshakes in flight keep one interpreter busy (5-7 ms CPU each); more only adds switching.
WIDTH = 64
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """The result of one node: a value, or why there is none."""

    node: Node
    value: T | None
    unreachable: Unreachable | None
    seconds: float
    notes: tuple[str, ...] = ()  # of the transport: retries, accepted keys
    phases: tuple[tuple[str, float], ...] = ()  # (phase, seconds) in order, the last one it was in


def unreachable(error: Exception, progress: Progress) -> Unreachable:
    """An exception of the work on a node as the reason of its result."""
    in_phase_s = time.monotonic() - progress.since
    if isinstance(error, TransportError):
        return Unreachable(error.phase, in_phase_s, str(error), error.hint)
    hint = "this is a fault of clusterctl, please report it"
    return Unreachable(progress.phase, in_phase_s, f"{type(error).__name__}: {error}", hint)


class Fanout(Generic[T]):
    """One sweep over nodes. Iterate it for results in order of arrival; `waiting()` for progress.

    `work(node, progress)` runs in a worker thread; its exception becomes that node's result. A node
    without a result at the deadline is reported with its phase, its daemon thread left behind.
    `meanwhile` is called several times a second while none arrives, and may raise to give up.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        work: Callable[[Node, Progress], T],
        *,
        deadline_s: float,
        width: int = WIDTH,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._nodes = list(nodes)
        self._work, self._meanwhile = work, meanwhile
        self._deadline_s = deadline_s
        self._width = max(1, min(width, len(self._nodes)))
        self._progress = {node: Progress() for node in self._nodes}
        self._open = set(self._nodes)
        self._started = time.monotonic()  # again when it is iterated

    def waiting(self) -> list[tuple[Node, str, float]]:
        """(node, phase, seconds in it) of nodes started and not answered, in hostfile order."""
        now = time.monotonic()
        rest = [(node, self._progress[node]) for node in self._nodes if node in self._open]
        return [(node, one.phase, now - one.since) for node, one in rest if one.phase != "queued"]

    def __iter__(self) -> Iterator[NodeResult[T]]:
        self._started = time.monotonic()
        todo = iter(self._nodes)  # shared by the threads: a step of a list's iterator is atomic
        done: queue.Queue[NodeResult[T]] = queue.Queue()
        stop = threading.Event()

        def worker() -> None:
            while not stop.is_set() and (node := next(todo, None)) is not None:
                done.put(self._one(node))

        for index in range(self._width):
            threading.Thread(target=worker, name=f"fanout-{index}", daemon=True).start()
        try:
            while self._open:
                left_s = self._deadline_s - (time.monotonic() - self._started)
                try:
                    result = done.get(timeout=max(0.0, min(left_s, TICK_S)))
                except queue.Empty:
                    if left_s <= 0:
                        break
                    self._meanwhile()
                    continue
                if result.node in self._open:
                    self._open.discard(result.node)
                    yield result
            late = f"no answer before the deadline of {units.duration(self._deadline_s)}"
            yield from self.rest(late, "not started before the deadline of the whole run")
        finally:
            stop.set()  # also when the caller stops early: queued nodes are not started

    def rest(self, why: str, why_queued: str) -> Iterator[NodeResult[T]]:
        """The nodes without a result, given up for this reason; nobody waits for them."""
        for node in [node for node in self._nodes if node in self._open]:
            self._open.discard(node)
            progress = self._progress[node]
            text = why_queued if progress.phase == "queued" else why
            now = time.monotonic()
            unreached = Unreachable(progress.phase, now - progress.since, text)
            yield self._result(node, None, unreached, now - self._started)

    def _one(self, node: Node) -> NodeResult[T]:
        progress = self._progress[node]
        progress.enter("resolve")
        started = time.monotonic()
        value, why = None, None
        try:
            value = self._work(node, progress)
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
            why = unreachable(error, progress)
        return self._result(node, value, why, time.monotonic() - started)

    def _result(self, node: Node, value: T | None, why: Why, seconds: float) -> NodeResult[T]:
        progress = self._progress[node]
        return NodeResult(node, value, why, seconds, tuple(progress.notes), progress.phases())


def in_order(nodes: Sequence[Node], results: Iterable[NodeResult[T]]) -> list[NodeResult[T]]:
    position = {node: index for index, node in enumerate(nodes)}
    return sorted(results, key=lambda result: position[result.node])
