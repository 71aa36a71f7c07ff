"""A stream of the payload `watch` with its connection: readings of a node, and its clock."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from clusterctl.errors import TransportError
from clusterctl.remote.payload import PayloadStream
from clusterctl.transport.base import Connection
from dashboards.feeds.watch_decoder import Decoder
from dashboards.model import units
from dashboards.model.samples import NodeSample

LINE_BYTES = 256 << 10
BYTES_S, BURST_BYTES = 64 << 10, 1 << 20  # of one stream; a node sends 2 kB a second
ANSWERS_KEPT = 8
GONE = (TransportError, OSError, EOFError)  # what a connection raises that is lost already


class ClockOffset:
    """How far a node's clock is ahead of the head's, by questions and answers on its stream.

    The answer was given somewhere between question and arrival, so the offset is known to half of
    the round trip; of the last questions the quickest one counts. Times are wall clocks.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []  # (bound, offset), oldest first

    def add(self, asked_s: float, node_s: float, heard_s: float) -> None:
        """An answer: asked and heard by the head's clock, given by the node's."""
        bound = (heard_s - asked_s) / 2
        if bound < 0:  # the head's own clock jumped in between
            self._seen.clear()
            return
        offset = node_s - (asked_s + heard_s) / 2
        # What cannot be true together means that a clock jumped: what was known before is void.
        if any(abs(offset - old) > bound + other + 0.001 for other, old in self._seen):
            self._seen.clear()
        self._seen = [*self._seen, (bound, offset)][-ANSWERS_KEPT:]

    def best(self) -> tuple[float | None, float | None]:
        """(offset, bound) in seconds; (None, None) before the first answer."""
        bound, offset = min(self._seen, default=(None, None))
        return offset, bound


@dataclass(slots=True, eq=False)
class OpenStream:
    connection: Connection
    stream: PayloadStream
    decoder: Decoder
    began: float  # monotonic
    rest: bytes = b""  # of the last line
    allowed: float = BURST_BYTES  # bytes that it may still send now
    offset: ClockOffset = field(default_factory=ClockOffset)
    asked: tuple[int, float] | None = None  # (question, head's wall clock)

    def take(self, data: bytes, at_s: float, wall_s: float) -> NodeSample | None:
        """What came at `at_s`, at `wall_s` by the wall clock: the node now, if there is a reading.

        Raises `TransportError` for too much of it, and for what the payload never sends.
        """
        self.allowed -= len(data)
        if self.allowed < 0:
            text = f"the node sends more than {units.size(BURST_BYTES)} a second"
            raise TransportError("parse", text)
        *lines, self.rest = (self.rest + data).split(b"\n")
        decoder, has_reading = self.decoder, False
        try:
            if len(self.rest) > LINE_BYTES:
                raise TransportError("parse", "a line without end")
            for line in lines:
                if decoder.take(line, at_s):
                    has_reading = True
                elif self.asked and decoder.pong and decoder.pong[0] == self.asked[0]:
                    self.offset.add(self.asked[1], decoder.pong[1], wall_s)
                    self.asked = None
            return decoder.sample(at_s, *self.offset.best()) if has_reading else None
        except TransportError as reason:
            begin = bytes(lines[0][:60] if lines else self.rest[:60])
            text = f"no line of the watcher: {reason}: {begin!r}"
            raise TransportError("parse", text) from None

    def why_ended(self, error: BaseException) -> tuple[str, str]:
        """(phase, message) of the error that ended it."""
        if isinstance(error, TransportError):
            return error.phase, str(error)
        if isinstance(error, EOFError):
            lines = self.stream.stderr_tail().strip().splitlines()
            return "command", "the watcher ended" + (f": {lines[-1]}" if lines else "")
        return "command", f"{type(error).__name__}: {error}"

    def close(self) -> None:
        for held in (self.stream, self.connection):
            with contextlib.suppress(*GONE):
                held.close()
