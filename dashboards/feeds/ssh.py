"""Readings of nodes over ssh: a stream for each node, one thread that reads them all.

Connecting and reading are apart, because a dead node costs its connector ten seconds and must not
make the readings of others stale. A stream that floods or sends garbage is closed. One that falls
silent stays open, because the node may only be frozen, while a connector tries in parallel; the
first that gives a line is used. There is one watcher on a node: a new one ends the old one there.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
import queue
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import unreachable
from clusterctl.remote.node_threads import Pauses, join_all
from clusterctl.transport.base import Connection, Progress
from dashboards.feeds.open_stream import BURST_BYTES, BYTES_S, GONE, OpenStream
from dashboards.feeds.stream_reader import StreamReader
from dashboards.feeds.watch_decoder import Decoder
from dashboards.model import units
from dashboards.model.samples import Clock, NodeDown, NodeSample, Sample

CONNECTORS = 32
PAUSES_S = (0.5, 30.0, 30.0)  # the first, the longest; after a stream of 30 s the first again
# In these phases a try costs a packet, and the node is seen soon after it is back. A node that
# refuses us (auth, hostkey) is tried ever more seldom, because tries may lock us out.
RETRY_S = 1.0
RETRIED = ("resolve", "tcp", "banner", "kex")
SILENT_S = 8.5  # a stream without a line for this long is an alarm
PING_S, PINGS_A_SECOND = 5.0, 100
MANY = 100  # nodes; above, Python's collector would hold up the screen
SELDOM = (20_000, 20, 20)  # thresholds of the collector
HURRY_S = 0.01  # an answer by pipe comes within this
CLOSE_S = 3.0


@dataclass(slots=True, eq=False)
class _Watched:
    """One node. Its fields are changed under the feed's lock."""

    node: Node
    open: OpenStream | None = None
    is_due: bool = True  # waits to be connected to, or is being connected to
    last_line: float = 0.0
    is_down: bool = False
    pauses: Pauses = field(default_factory=lambda: Pauses(*PAUSES_S))


class SshFeed:
    """Watches nodes until closed. `drain()` gives at most one sample a node."""

    def __init__(
        self, cluster: Cluster, *, clock: Clock, interval_s: float = 1.0, source: str = ""
    ) -> None:
        self._cluster, self.now, self._interval_s = cluster, clock, interval_s
        nodes = cluster.nodes
        self._args = {
            "interval_s": interval_s,
            "session": uuid.uuid4().hex[:16],
            "ping_s": PING_S * max(1.0, len(nodes) / (PINGS_A_SECOND * PING_S)),
        }
        self.nodes = tuple(node.name for node in nodes)
        self.source = source
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._newest: dict[str, NodeSample | NodeDown] = {}
        self._answered: set[str] = set()
        self._watched = [_Watched(node) for node in nodes]
        self._order = itertools.count(1)
        self._due = [(0.0, next(self._order), watched) for watched in self._watched]
        self._due_changed = threading.Condition()
        self._closing: queue.SimpleQueue[OpenStream | None] = queue.SimpleQueue()
        self._reader = StreamReader(self._take, self._check)
        self._garbage = contextlib.ExitStack()
        connectors = max(1, min(cluster.width, CONNECTORS, len(nodes)))
        work = [self._connect_forever] * connectors + [self._close_forever, self._ask_forever]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]

    def start(self) -> None:
        if len(self._watched) > MANY:
            self._garbage.enter_context(collecting_rarely())
        self._reader.start()
        for thread in self._threads:
            thread.start()

    def settled(self) -> bool:
        with self._lock:
            return len(self._answered) == len(self.nodes)

    def reads(self) -> bool:
        return False

    def drain(self) -> list[Sample]:
        with self._lock:
            newest, self._newest = self._newest, {}
        return list(newest.values())

    def close(self) -> None:
        """Close all streams: each payload sees its stdin close and exits."""
        self._stop.set()
        self._garbage.close()
        with self._due_changed:
            self._due_changed.notify_all()
        self._reader.close()
        with self._lock:
            for watched in self._watched:
                if watched.open is not None:
                    self._closing.put(watched.open)
                watched.open = None
        self._closing.put(None)
        join_all([thread for thread in self._threads if thread.is_alive()], CLOSE_S)

    # In the thread of the `StreamReader`: lines of the nodes.

    def _take(
        self,
        key: tuple[_Watched, OpenStream],
        data: bytes,
        wall_s: float,
        error: BaseException | None,
    ) -> None:
        watched, open_ = key
        sample = None
        if error is None:
            try:
                sample = open_.take(data, self.now(), wall_s)
            except TransportError as reason:
                error = reason
        if error is not None:
            self._lose(watched, open_, *open_.why_ended(error))
            return
        if sample is None:
            return
        with self._lock:
            if watched.open is not open_:
                return  # another stream of this node was quicker
            watched.last_line, watched.is_down = time.monotonic(), False
            before = self._newest.get(sample.node)
            if isinstance(before, NodeSample) and before.clock_step_s:
                # That sample is replaced unread; its jump must not be lost.
                step_s = before.clock_step_s + (sample.clock_step_s or 0.0)
                sample = replace(sample, clock_step_s=step_s)
            self._newest[sample.node] = sample
            self._answered.add(sample.node)

    def _check(self) -> None:
        """Twice a second: allow more bytes, and find streams that fell silent."""
        now = time.monotonic()
        silent_s = max(SILENT_S, 5 * self._interval_s)
        for watched in self._watched:
            open_ = watched.open
            if open_ is None:
                continue
            open_.allowed = min(BURST_BYTES, open_.allowed + BYTES_S / 2)
            if now - watched.last_line > silent_s and not watched.is_down:
                text = f"no reading for {units.duration(now - watched.last_line)}"
                self._report_down(watched, "command", text)
                self._connect_later(watched, 0.0)

    # How a node is lost and found.

    def _report_down(self, watched: _Watched, phase: str, message: str) -> None:
        name = watched.node.name
        with self._lock:
            watched.is_down = True
            self._newest[name] = NodeDown(name, self.now(), phase, message)
            self._answered.add(name)

    def _lose(self, watched: _Watched, open_: OpenStream, phase: str, message: str) -> None:
        """The stream ended or is refused: report it, close it, and try again later."""
        with self._lock:
            if watched.open is not open_:
                return
            watched.open = None
        self._let_go(watched, open_)
        self._report_down(watched, phase, message)
        lasted_s = time.monotonic() - open_.began
        self._connect_later(watched, self._pause_s(watched, phase, lasted_s))

    def _pause_s(self, watched: _Watched, phase: str, lasted_s: float = 0.0) -> float:
        """Seconds until the next try; spread out, because a switch that returns has many nodes."""
        pause_s = RETRY_S if phase in RETRIED else watched.pauses.after(lasted_s)
        return pause_s * random.uniform(0.8, 1.2)

    def _connect_later(self, watched: _Watched, pause_s: float) -> None:
        with self._lock:
            if watched.is_due:
                return
            watched.is_due = True
        with self._due_changed:
            heapq.heappush(self._due, (time.monotonic() + pause_s, next(self._order), watched))
            self._due_changed.notify()

    def _let_go(self, watched: _Watched, open_: OpenStream) -> None:
        self._reader.remove((watched, open_))
        self._closing.put(open_)

    def _close_forever(self) -> None:
        while (open_ := self._closing.get()) is not None:
            open_.close()

    def _next_due(self) -> _Watched | None:
        """The next node to connect to; None when the feed is closed."""
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
            connection: Connection | None = None
            try:
                connection = self._cluster.transport.connect(
                    watched.node, self._cluster.limits, progress
                )
                if not self._begin(watched, connection, progress):
                    connection.close()
                continue
            except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's state
                why = unreachable(error, progress)
            if connection is not None:
                with contextlib.suppress(*GONE):
                    connection.close()
            with self._lock:
                watched.is_due = False
                is_back = watched.open is not None and not watched.is_down
            if not is_back and not self._stop.is_set():
                self._report_down(watched, why.phase, why.message)
                self._connect_later(watched, self._pause_s(watched, why.phase))

    def _begin(self, watched: _Watched, connection: Connection, progress: Progress) -> bool:
        """Start the watcher; False when the old stream gave a line meanwhile."""
        with self._lock:
            if self._stop.is_set() or (watched.open is not None and not watched.is_down):
                watched.is_due = False
                return False
            old, watched.open = watched.open, None
        if old is not None:
            self._let_go(watched, old)
        progress.enter("start")
        args = dict(self._args, node=watched.node.name)
        stream = payload.stream(connection, "watch", args, nvml=True)
        now = time.monotonic()
        open_ = OpenStream(connection, stream, Decoder(watched.node.name), now)
        with self._lock:
            watched.is_due = False
            is_closed = self._stop.is_set()
            if not is_closed:
                watched.open, watched.last_line, watched.is_down = open_, now, False
        if is_closed:
            open_.close()
        else:
            self._reader.add((watched, open_), stream)
            self._ask(open_)
        return True

    def _ask_forever(self) -> None:
        """Ask each node for its time, in turn; a write that hangs delays nothing but these."""
        turn = itertools.cycle(self._watched)
        wait_s = max(1 / 20, PING_S / len(self._watched)) if self._watched else PING_S
        share = max(1, min(PINGS_A_SECOND // 20, round(len(self._watched) * wait_s / PING_S)))
        while not self._stop.wait(wait_s):
            for watched in itertools.islice(turn, share):
                # Not a silent one: questions would pile up, and the answer would be late anyway.
                if watched.open and time.monotonic() - watched.last_line < 3 * self._interval_s:
                    self._ask(watched.open)

    def _ask(self, open_: OpenStream) -> None:
        question = next(self._order)
        self._reader.hurry(HURRY_S)
        open_.asked = (question, time.time())
        with contextlib.suppress(*GONE):  # the reader gets the error too
            open_.stream.send({"ping": question})


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect cyclic garbage less often while a large fleet is watched; what is there at the
    beginning of the block is left out of all rounds.

    States and samples hold no cycles: all of them go when nothing points to them any more. Python's
    collector walks through them none the less, and with 1,000 nodes of 8 GPUs one full round stops
    the screen for 0.1 s every other second (measured: ticks of 80 ms CPU, every second one of 200).
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
