"""Files that ranks write, from the beginning of an attempt on, without those before it."""

import os

from clusterctl.payload.proc_files import as_text, or_none
from clusterctl.payload.tools import in_thread

TAIL_BYTES = 16384


class Reading:
    """What `work` returns, in a thread: a stall of the storage holds up that alone."""

    def __init__(self, work, *args):
        self._found = []  # type: list
        self._thread = in_thread(lambda: self._found.append(work(*args)))

    def within(self, timeout_s):
        """[result], [] where it raised, None while it still reads."""
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else self._found


class Follower:
    """A file to which others append."""

    def __init__(self, path):
        self.path = path
        self.begin = self.offset = or_none(os.path.getsize, path) or 0

    @property
    def place(self):
        """How much of this attempt's part has been read."""
        return self.offset - self.begin

    def go_to(self, place):
        self.offset = self.begin + place

    def lines(self, limit, to_the_end=False):
        """(whole lines of at most `limit` bytes, the place after them), from this place on; at the
        end the last ones, after a line about a gap. Only `go_to` changes the place."""
        gap = 0
        begin = self.offset
        try:
            with open(self.path, "rb") as file:
                if to_the_end:
                    gap = max(0, file.seek(0, os.SEEK_END) - limit - begin)
                file.seek(begin + gap)
                data = file.read(limit)
        except OSError:
            return "", begin - self.begin
        # The last line may still be written, or be cut within a character.
        if (len(data) < limit and not to_the_end) or (len(data) == limit and b"\n" in data):
            data = data[: data.rfind(b"\n") + 1]
        text = as_text(data)
        if gap:
            text = "[%d bytes stayed on the node: %s]\n%s" % (gap, self.path, text)
        return text, begin + gap + len(data) - self.begin

    def tail(self):
        """The last lines."""
        try:
            with open(self.path, "rb") as file:
                start = max(self.begin, file.seek(0, os.SEEK_END) - TAIL_BYTES)
                file.seek(start)
                lines = as_text(file.read()).splitlines()
        except OSError:
            return []
        return lines[1:] if start > self.begin and len(lines) > 1 else lines  # the first is cut
