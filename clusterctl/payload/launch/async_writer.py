"""What the agent says and what it reads to say it: messages to the head, files that grow."""

import json
import os
import queue
import threading

FLUSH_S = 3.0  # for the last messages, when the head reads slowly or not at all
BACKLOG = 50  # messages on their way, above which what can wait does
TAIL_BYTES = 16384


class Voice:
    """Messages to the head, sent by a thread of its own: the agent must go on when nobody reads.

    A head behind a cut cable lets the pipe fill up, and a write would then block for ever; a head
    that is gone makes it fail. Neither may keep the agent from stopping its ranks.
    """

    def __init__(self, on_loss):
        self._on_loss = on_loss
        self._waiting = queue.SimpleQueue()  # type: Any
        self.is_lost = False
        threading.Thread(target=self._send, name="voice", daemon=True).start()

    def say(self, message):
        if not self.is_lost:
            self._waiting.put(json.dumps(message).encode() + b"\n")

    def is_behind(self):
        return self.is_lost or self._waiting.qsize() > BACKLOG

    def flush(self):
        """Wait until everything has been sent, but not for ever."""
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
    """What was appended to a file since the last look."""

    def __init__(self, path):
        self.path, self.offset = path, 0

    def lines(self, limit, to_the_end=False):
        """Whole lines; at the end also what stands behind the last newline.

        Of more than `limit` bytes at the end the last ones are taken, and the gap is told.
        """
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
        if len(data) < limit and not to_the_end:
            data = data[: data.rfind(b"\n") + 1]  # the last line may still be written
        elif len(data) == limit and b"\n" in data:
            data = data[: data.rfind(b"\n") + 1]  # no cut through a character
        self.offset += len(data)
        text = data.decode("utf-8", "backslashreplace")
        return "[%d bytes stayed on the node: %s]\n%s" % (gap, self.path, text) if gap else text


def tail(path):
    """The last lines of a log. Whoever shows them finds the one that states the error."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            start = max(0, file.tell() - TAIL_BYTES)
            file.seek(start)
            lines = file.read().decode("utf-8", "backslashreplace").splitlines()
    except OSError:
        return []
    return lines[1:] if start and len(lines) > 1 else lines  # the first one is cut
