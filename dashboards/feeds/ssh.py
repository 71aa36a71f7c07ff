"""Readings of nodes over ssh: one stream a node, one thread that reads them all, the newest only.

Connecting and reading are apart, because a dead node costs its connector ten seconds and must not
make the readings of others stale. A stream that floods or talks garbage is hung up; one that falls
silent is left open, for the node may only be frozen, while a connector knocks in parallel: whatever
speaks first wins. Never more than one watcher a node: a new one ends the old one there.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.remote.followers import Pauses
from clusterctl.transport.base import Connection, Limits, Progress, Transport
from dashboards.feeds.clock_offset import ClockOffset
from dashboards.feeds.gc_tuning import Seldom
from dashboards.feeds.stream_reader import Pump
from dashboards.feeds.watch_decoder import Decoder
from dashboards.model.samples import Clock, NodeDown, NodeSample, Sample

CONNECTORS = 32
PAUSES_S = (0.5, 30.0, 30.0)  # the first, the longest; after a stream of 30 s the first again
# Nobody there: asking costs a packet, and the node is to be seen soon after it is back. Who refuses
# us (auth, hostkey) is asked ever more seldom, for that may lock us out.
KNOCK_S = 1.0
KNOCKED = ("resolve", "tcp", "banner", "kex")
SILENT_S = 8.5  # a stream without a line for this long is an alarm
LINE_BYTES = 256 << 10
BYTES_S, BURST_BYTES = 64 << 10, 1 << 20  # of one stream; a node says 2 kB a second
PING_S, PINGS_A_SECOND = 5.0, 100
MANY = 100  # nodes; above, Python's collector would hold up the screen
HURRY_S = 0.01  # an answer by pipe is here within this


@dataclass(slots=True, eq=False)
class _Open:
    """A stream with what belongs to it."""

    connection: Connection
    stream: ship.PayloadStream
    decoder: Decoder
    began: float  # monotonic, as all times here
    rest: bytes = b""
    room: float = BURST_BYTES  # bytes that it may still say now
    offset: ClockOffset = field(default_factory=ClockOffset)
    asked: tuple[int, float] | None = None  # (question, head's wall clock)

    def close(self) -> None:
        for held in (self.stream, self.connection):
            try:
                held.close()
            except (TransportError, OSError, EOFError):
                pass  # it is gone already


@dataclass(slots=True, eq=False)
class _Watched:
    """One node. Its fields are changed under the feed's lock."""

    node: Node
    open: _Open | None = None
    dialled: bool = True  # waits to be connected to, or is just being
    heard: float = 0.0
    is_down: bool = False
    pauses: Pauses = field(default_factory=lambda: Pauses(*PAUSES_S))


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
        paths: Sequence[str] = (),
    ) -> None:
        """`paths` are directories on the nodes whose file systems matter."""
        self._transport, self._limits, self._clock = transport, limits, clock
        self._interval_s = interval_s
        self._args = {
            "interval_s": interval_s,
            "session": uuid.uuid4().hex[:16],
            "paths": list(paths),
            "ping_s": PING_S * max(1.0, len(nodes) / (PINGS_A_SECOND * PING_S)),
        }
        self.nodes = tuple(node.name for node in nodes)
        self.source = source
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._newest: dict[str, NodeSample | NodeDown] = {}
        self._heard_of: set[str] = set()
        self._watched = [_Watched(node) for node in nodes]
        self._order = itertools.count(1)
        self._due = [(0.0, next(self._order), watched) for watched in self._watched]
        self._due_changed = threading.Condition()
        self._closing: queue.SimpleQueue[_Open | None] = queue.SimpleQueue()
        self._pump = Pump(self._take, self._look)
        self._garbage = Seldom()
        width = max(1, min(width, CONNECTORS, len(nodes)))
        self._threads = [
            threading.Thread(target=self._connect_forever, name=f"watch-connect-{i}", daemon=True)
            for i in range(width)
        ] + [
            threading.Thread(target=self._hang_up_forever, name="watch-hang-up", daemon=True),
            threading.Thread(target=self._ask_forever, name="watch-clock", daemon=True),
        ]

    def start(self) -> None:
        if len(self._watched) > MANY:
            self._garbage.begin()
        self._pump.start()
        for thread in self._threads:
            thread.start()

    def now(self) -> float:
        return self._clock()

    def settled(self) -> bool:
        with self._lock:
            return len(self._heard_of) == len(self.nodes)

    def drain(self) -> list[Sample]:
        with self._lock:
            newest, self._newest = self._newest, {}
        return list(newest.values())

    def close(self) -> None:
        """Hang up everywhere: each payload sees its stdin close and exits."""
        self._stop.set()
        self._garbage.end()
        with self._due_changed:
            self._due_changed.notify_all()
        self._pump.close()
        with self._lock:
            left = [watched.open for watched in self._watched if watched.open is not None]
            for watched in self._watched:
                watched.open = None
        for open_ in left:
            self._closing.put(open_)
        self._closing.put(None)
        deadline = time.monotonic() + 3.0
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    # What the nodes say, in the pump's thread.

    def _take(
        self, key: tuple[_Watched, _Open], data: bytes, wall_s: float, error: BaseException | None
    ) -> None:
        watched, open_ = key
        if error is not None:
            self._lost(watched, open_, *_why_ended(open_, error))
            return
        at_s, now = self._clock(), time.monotonic()
        open_.room -= len(data)
        if open_.room < 0:
            self._lost(
                watched, open_, "parse", f"the node says more than {BURST_BYTES >> 10} kB a second"
            )
            return
        *lines, open_.rest = (open_.rest + data).split(b"\n")
        has_reading = False
        try:
            if len(open_.rest) > LINE_BYTES:
                raise TransportError("parse", "a line without end")
            for line in lines:
                if open_.decoder.take(line, at_s):
                    has_reading = True
                elif open_.asked is not None and open_.decoder.pong is not None:
                    number, node_s = open_.decoder.pong
                    if number == open_.asked[0]:
                        open_.offset.add(open_.asked[1], node_s, wall_s)
                        open_.asked = None
            sample = open_.decoder.sample(at_s, *open_.offset.best()) if has_reading else None
        except TransportError as odd:
            said = bytes(lines[0][:60] if lines else open_.rest[:60])
            self._lost(watched, open_, "parse", f"no line of the watcher: {odd}: {said!r}")
            return
        if sample is None:
            return
        with self._lock:
            if watched.open is not open_:
                return  # another stream of this node was quicker
            watched.heard, watched.is_down = now, False
            before = self._newest.get(sample.node)
            if isinstance(before, NodeSample) and before.clock_step_s:
                # Nobody has seen that one: a jump must not be lost with it.
                step_s = before.clock_step_s + (sample.clock_step_s or 0.0)
                sample = replace(sample, clock_step_s=step_s)
            self._newest[sample.node] = sample
            self._heard_of.add(sample.node)

    def _look(self) -> None:
        """Twice a second: room to speak again, and who has fallen silent."""
        now = time.monotonic()
        silent_s = max(SILENT_S, 5 * self._interval_s)
        for watched in self._watched:
            open_ = watched.open
            if open_ is None:
                continue
            open_.room = min(BURST_BYTES, open_.room + BYTES_S / 2)
            if now - watched.heard > silent_s and not watched.is_down:
                self._say_down(watched, "command", f"no reading for {now - watched.heard:.0f} s")
                self._dial_later(watched, 0.0)

    # How a node is lost and found.

    def _say_down(self, watched: _Watched, phase: str, message: str) -> None:
        with self._lock:
            watched.is_down = True
            self._newest[watched.node.name] = NodeDown(
                watched.node.name, self._clock(), phase, message
            )
            self._heard_of.add(watched.node.name)

    def _lost(self, watched: _Watched, open_: _Open, phase: str, message: str) -> None:
        """The stream is gone or not to be borne: say so, hang up, and try again later."""
        with self._lock:
            if watched.open is not open_:
                return
            watched.open = None
        self._hang_up(watched, open_)
        self._say_down(watched, phase, message)
        lasted_s = time.monotonic() - open_.began
        self._dial_later(watched, self._next_pause(watched, phase, lasted_s))

    def _next_pause(self, watched: _Watched, phase: str, lasted_s: float = 0.0) -> float:
        """Seconds until the next try; spread out, for a switch that comes back has many nodes."""
        spread = random.uniform(0.8, 1.2)
        if phase in KNOCKED:
            return KNOCK_S * spread
        return watched.pauses.after(lasted_s) * spread

    def _dial_later(self, watched: _Watched, pause_s: float) -> None:
        with self._lock:
            if watched.dialled:
                return
            watched.dialled = True
        with self._due_changed:
            heapq.heappush(self._due, (time.monotonic() + pause_s, next(self._order), watched))
            self._due_changed.notify()

    def _hang_up(self, watched: _Watched, open_: _Open) -> None:
        self._pump.remove((watched, open_))
        self._closing.put(open_)

    def _hang_up_forever(self) -> None:
        while (open_ := self._closing.get()) is not None:
            open_.close()

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
            connection: Connection | None = None
            try:
                connection = self._transport.connect(watched.node, self._limits, progress)
                if not self._begin(watched, connection, progress):
                    connection.close()
                continue
            except TransportError as error:
                phase, message = error.phase, str(error)
            except Exception as error:  # noqa: BLE001 - node boundary: it becomes this node's state
                phase, message = progress.phase, f"{type(error).__name__}: {error}"
            if connection is not None:
                try:
                    connection.close()
                except (TransportError, OSError, EOFError):
                    pass  # it is gone already
            with self._lock:
                watched.dialled = False
                back = watched.open is not None and not watched.is_down
            if not back and not self._stop.is_set():
                self._say_down(watched, phase, message)
                self._dial_later(watched, self._next_pause(watched, phase))

    def _begin(self, watched: _Watched, connection: Connection, progress: Progress) -> bool:
        """Start the watcher; False when the old stream has come to life meanwhile."""
        with self._lock:
            if self._stop.is_set() or (watched.open is not None and not watched.is_down):
                watched.dialled = False
                return False
            old, watched.open = watched.open, None
        if old is not None:
            self._hang_up(watched, old)
        progress.enter("start")
        args = dict(self._args, node=watched.node.name)
        stream = ship.stream(connection, "watch", args, nvml=True)
        now = time.monotonic()
        open_ = _Open(connection, stream, Decoder(watched.node.name), now)
        with self._lock:
            watched.dialled = False
            ends = self._stop.is_set()
            if not ends:
                watched.open, watched.heard, watched.is_down = open_, now, False
        if ends:
            open_.close()
            return True
        self._pump.add((watched, open_), stream)
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
                if watched.open and time.monotonic() - watched.heard < 3 * self._interval_s:
                    self._ask(watched.open)

    def _ask(self, open_: _Open) -> None:
        question = next(self._order)
        self._pump.hurry(HURRY_S)
        open_.asked = (question, time.time())
        try:
            open_.stream.send({"ping": question})
        except (TransportError, OSError, EOFError):
            pass  # the pump will learn of it


def _why_ended(open_: _Open, error: BaseException) -> tuple[str, str]:
    if isinstance(error, TransportError):
        return error.phase, str(error)
    if isinstance(error, EOFError):
        said = open_.stream.stderr_tail().strip().splitlines()
        return "command", "the watcher ended" + (f": {said[-1]}" if said else "")
    return "command", f"{type(error).__name__}: {error}"
