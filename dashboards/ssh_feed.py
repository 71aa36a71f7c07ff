"""Readings of nodes over ssh: one stream a node, bounded threads, the newest reading only.

Connecting and reading are apart, because a dead node costs its connector ten seconds and must not
make the readings of others stale. A node that floods, freezes or dies loses its stream and is tried
again with growing pauses; nobody else notices.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.payload import ship
from clusterctl.transport.base import Connection, Limits, Progress, Transport
from dashboards.feeds import Clock
from dashboards.samples import NodeDown, NodeSample, Sample
from dashboards.watch_line import parse

CONNECTORS = 32
READERS = 64
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
SILENT_S = 10.0  # a stream without a line for this long is given up
LINES_AT_ONCE = 50  # of one stream, before its reader looks at the next one


@dataclass(slots=True, eq=False)
class _Watched:
    """One node and its stream, owned by one thread at a time."""

    node: Node
    connection: Connection | None = None
    stream: ship.PayloadStream | None = None
    heard: float = 0.0  # monotonic
    pause_s: float = FIRST_PAUSE_S

    def hang_up(self) -> None:
        for held in (self.stream, self.connection):
            if held is not None:
                try:
                    held.close()
                except (TransportError, OSError, EOFError):
                    pass  # it is gone already
        self.stream = self.connection = None


@dataclass(slots=True)
class _Reader:
    """The streams that one thread reads in turn."""

    streams: list[_Watched] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class SshFeed:
    """Watches nodes until closed. `drain()` gives at most one sample a node."""

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: Transport,
        *,
        limits: Limits,
        clock: Clock,
        interval_s: float = 1.0,
        width: int = CONNECTORS,
        source: str = "",
    ) -> None:
        self._transport, self._limits, self._clock = transport, limits, clock
        self._interval_s = interval_s
        self.nodes = tuple(node.name for node in nodes)
        self.source = source
        self._stop = threading.Event()
        self._newest: dict[str, Sample] = {}
        self._newest_lock = threading.Lock()
        self._heard_of: set[str] = set()
        self._order = itertools.count()
        self._due: list[tuple[float, int, _Watched]] = [
            (0.0, next(self._order), _Watched(node)) for node in nodes
        ]
        self._due_changed = threading.Condition()
        self._readers = [_Reader() for _ in range(max(1, min(READERS, len(nodes))))]
        self._threads = [
            threading.Thread(target=self._connect_forever, name=f"watch-connect-{i}", daemon=True)
            for i in range(max(1, min(width, CONNECTORS, len(nodes))))
        ] + [
            threading.Thread(
                target=self._read_forever, args=(reader,), name=f"watch-read-{i}", daemon=True
            )
            for i, reader in enumerate(self._readers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def now(self) -> float:
        return self._clock()

    def settled(self) -> bool:
        with self._newest_lock:
            return len(self._heard_of) == len(self.nodes)

    def drain(self) -> list[Sample]:
        with self._newest_lock:
            samples, self._newest = list(self._newest.values()), {}
        return samples

    def close(self) -> None:
        """Hang up everywhere: each payload sees its stdin close and exits."""
        self._stop.set()
        with self._due_changed:
            self._due_changed.notify_all()
        deadline = time.monotonic() + 2.0
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        for reader in self._readers:
            with reader.lock:
                for watched in reader.streams:
                    watched.hang_up()
                reader.streams.clear()

    def _put(self, sample: NodeSample | NodeDown) -> None:
        with self._newest_lock:
            self._newest[sample.node] = sample
            self._heard_of.add(sample.node)

    def _lost(self, watched: _Watched, phase: str, message: str) -> None:
        """Say so, hang up, and try again later."""
        watched.hang_up()
        self._put(NodeDown(watched.node.name, self._clock(), phase, message))
        # Spread out, so that a switch that comes back does not meet all nodes at once.
        due = time.monotonic() + watched.pause_s * random.uniform(0.8, 1.2)
        watched.pause_s = min(LONGEST_PAUSE_S, 2 * watched.pause_s)
        with self._due_changed:
            heapq.heappush(self._due, (due, next(self._order), watched))
            self._due_changed.notify()

    def _next_due(self) -> _Watched | None:
        """The node whose turn it is; None when the feed is closed."""
        with self._due_changed:
            while not self._stop.is_set():
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._due_changed.wait(wait_s)
        return None

    def _connect_forever(self) -> None:
        while (watched := self._next_due()) is not None:
            progress = Progress("resolve")
            try:
                watched.connection = self._transport.connect(watched.node, self._limits, progress)
                progress.enter("start")
                watched.stream = ship.stream(
                    watched.connection, "watch", {"interval_s": self._interval_s}, nvml=True
                )
            except TransportError as error:
                self._lost(watched, error.phase, str(error))
                continue
            except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's state
                self._lost(watched, progress.phase, f"{type(error).__name__}: {error}")
                continue
            if self._stop.is_set():
                watched.hang_up()
                return
            watched.heard = time.monotonic()
            reader = min(self._readers, key=lambda reader: len(reader.streams))
            with reader.lock:
                reader.streams.append(watched)

    def _read_forever(self, reader: _Reader) -> None:
        while not self._stop.is_set():
            with reader.lock:
                streams = list(reader.streams)
            if not streams:
                self._stop.wait(0.1)
                continue
            # One stream: sleep in its read. Several: a short look at each.
            look_s = 0.25 if len(streams) == 1 else 0.2 / len(streams)
            for watched in streams:
                if self._stop.is_set():
                    return
                lost = self._look(watched, look_s)
                if lost is not None:
                    with reader.lock:
                        if watched not in reader.streams:
                            continue  # closed meanwhile
                        reader.streams.remove(watched)
                    self._lost(watched, *lost)

    def _look(self, watched: _Watched, look_s: float) -> tuple[str, str] | None:
        """Take what a stream has; (phase, message) when it is lost."""
        assert watched.stream is not None
        try:
            newest = None
            for _ in range(LINES_AT_ONCE):
                line = watched.stream.receive(look_s if newest is None else 0.0)
                if line is None:
                    break
                newest = line
        except TransportError as error:
            return error.phase, str(error)
        except EOFError:
            said = watched.stream.stderr_tail().strip().splitlines()
            return "command", "the watcher ended" + (f": {said[-1]}" if said else "")
        except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's state
            return "command", f"{type(error).__name__}: {error}"
        if newest is not None:
            watched.heard, watched.pause_s = time.monotonic(), FIRST_PAUSE_S
            self._put(parse(watched.node.name, newest, self._clock()))
        elif time.monotonic() - watched.heard > max(SILENT_S, 5 * self._interval_s):
            return "command", f"no reading for {time.monotonic() - watched.heard:.0f} s"
        return None
