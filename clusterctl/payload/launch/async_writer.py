"""Messages of the agent to the head, and the growing files that it sends."""

import json
import os
import queue
import threading

from clusterctl.payload.prelude import as_text, in_thread

FLUSH_S = 3.0  # for the last messages, when the head reads slowly or not at all
BACKLOG = 50  # unsent messages, above which logs and telemetry wait
TAIL_BYTES = 16384


class AsyncWriter:
    """Sends messages to the head from its own thread, so that the agent never waits for a reader.

    With a cut cable the pipe fills up and a write never returns; with a head that is gone it fails.
    Neither may keep the agent from stopping its ranks.
    """

    def __init__(self, on_loss):
        self._on_loss = on_loss
        self._waiting = queue.SimpleQueue()  # type: Any
        self.is_lost = False
        in_thread(self._send)

    def send(self, message):
        if not self.is_lost:
            self._waiting.put(json.dumps(message).encode() + b"\n")

    def is_behind(self):
        return self.is_lost or self._waiting.qsize() > BACKLOG

    def flush(self):
        """Wait until everything has been sent, FLUSH_S at most."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait(FLUSH_S)

    def _send(self):
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                while item and not self.is_lost:
                    item = item[os.write(1, item) :]
            except OSError:
                self.is_lost = True
                self._on_loss()


class Follower:
    """What was appended to a file since the last call."""

    def __init__(self, path):
        self.path, self.offset = path, 0

    def lines(self, limit, to_the_end=False):
        """Whole lines of at most `limit` bytes; at the end the last, after a line about a gap."""
        gap = 0
        try:
            with open(self.path, "rb") as file:
                if to_the_end:
                    gap = max(0, file.seek(0, os.SEEK_END) - limit - self.offset)
                self.offset += gap
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return ""
        # The last line may still be written, or be cut within a character.
        if (len(data) < limit and not to_the_end) or (len(data) == limit and b"\n" in data):
            data = data[: data.rfind(b"\n") + 1]
        self.offset += len(data)
        text = as_text(data)
        return "[%d bytes stayed on the node: %s]\n%s" % (gap, self.path, text) if gap else text


def tail(path):
    """The last lines of a log."""
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            lines = as_text(file.read()).splitlines()
    except OSError:
        return []
    return lines[1:] if start and len(lines) > 1 else lines  # the first one is cut
