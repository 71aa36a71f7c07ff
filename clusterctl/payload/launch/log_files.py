"""Files that ranks write, from the beginning of an attempt on, without those before it."""

import os

from clusterctl.payload.proc_files import as_text, or_none

TAIL_BYTES = 16384


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
