"""Do one thing on many nodes: bounded threads, results as they arrive, one deadline for all."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Progress, Unreachable

T = TypeVar("T")

# 64 handshakes in flight keep one interpreter busy (5-7 ms CPU each); more only adds switching.
WIDTH = 64


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """What came of one node: a value, or why there is none."""

    node: Node
    value: T | None
    unreachable: Unreachable | None
    seconds: float
    notes: tuple[str, ...] = ()  # what the transport did on the way: retries, accepted keys
    phases: tuple[tuple[str, float], ...] = ()  # (phase, seconds) in order, the last one it was in


class Fanout(Generic[T]):
    """One sweep over nodes. Iterate it for results in order of arrival; `waiting()` for progress.

    `work(node, progress)` runs in a worker thread. A `TransportError` it raises, and any other
    exception, becomes that node's result; a node that has no result at the deadline is reported
    with the phase it is in, and its thread is left behind (daemon), so one dead node costs the
    others nothing.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        work: Callable[[Node, Progress], T],
        *,
        deadline_s: float,
        width: int = WIDTH,
    ) -> None:
        self._nodes = list(nodes)
        self._work = work
        self._deadline_s = deadline_s
        self._width = max(1, min(width, len(self._nodes)))
        self._progress = {node: Progress() for node in self._nodes}
        self._open = set(self._nodes)

    def waiting(self) -> list[tuple[Node, str, float]]:
        """(node, phase, seconds in it) of nodes begun and not answered, in hostfile order."""
        now = time.monotonic()
        return [
            (node, progress.phase, now - progress.since)
            for node, progress in self._progress.items()
            if node in self._open and progress.phase != "queued"
        ]

    def __iter__(self) -> Iterator[NodeResult[T]]:
        started = time.monotonic()
        todo: queue.SimpleQueue[Node] = queue.SimpleQueue()
        done: queue.SimpleQueue[NodeResult[T]] = queue.SimpleQueue()
        stop = threading.Event()
        for node in self._nodes:
            todo.put(node)

        def worker() -> None:
            while not stop.is_set():
                try:
                    node = todo.get_nowait()
                except queue.Empty:
                    return
                done.put(self._one(node))

        for index in range(self._width):
            threading.Thread(target=worker, name=f"fanout-{index}", daemon=True).start()
        try:
            while self._open:
                left = self._deadline_s - (time.monotonic() - started)
                try:
                    result = done.get(timeout=max(0.0, left))
                except queue.Empty:
                    break
                if result.node in self._open:
                    self._open.discard(result.node)
                    yield result
            for node in self._nodes:
                if node in self._open:
                    self._open.discard(node)
                    yield self._late(node, time.monotonic() - started)
        finally:
            stop.set()  # also when the caller stops early: queued nodes are not begun

    def _one(self, node: Node) -> NodeResult[T]:
        progress = self._progress[node]
        progress.enter("resolve")
        started = time.monotonic()
        try:
            value, unreachable = self._work(node, progress), None
        except TransportError as error:
            value = None
            unreachable = Unreachable(
                error.phase, time.monotonic() - progress.since, str(error), error.hint
            )
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's result
            value = None
            unreachable = Unreachable(
                progress.phase,
                time.monotonic() - progress.since,
                f"{type(error).__name__}: {error}",
                "this is a fault of clusterctl, please report it",
            )
        seconds = time.monotonic() - started
        return NodeResult(
            node, value, unreachable, seconds, tuple(progress.notes), progress.phases()
        )

    def _late(self, node: Node, seconds: float) -> NodeResult[T]:
        progress = self._progress[node]
        in_phase = time.monotonic() - progress.since
        if progress.phase == "queued":
            late = Unreachable("queued", in_phase, "not begun before the deadline of the whole run")
        else:
            late = Unreachable(
                progress.phase, in_phase, f"no answer before the deadline of {self._deadline_s:g} s"
            )
        return NodeResult(node, None, late, seconds, tuple(progress.notes), progress.phases())


def in_order(nodes: Sequence[Node], results: Sequence[NodeResult[T]]) -> list[NodeResult[T]]:
    """Results in the hostfile's order."""
    position = {node: index for index, node in enumerate(nodes)}
    return sorted(results, key=lambda result: position[result.node])
