"""Lines of JSON over a unix socket that does not block: of a starter, and of a supervisor."""

import json

PIECE_BYTES, MOST_PIECES = 1 << 20, 16  # that are read at once


def line_of(message):
    return json.dumps(message).encode() + b"\n"


class JsonSocket:
    """The connected socket `peer`; `is_gone` once the other side has closed it."""

    def __init__(self, peer):  # type: (Any) -> None
        peer.setblocking(False)
        self.peer, self.unread, self.is_gone = peer, b"", False

    def send(self, message, within_s=0.0):
        """Raises OSError."""
        self.peer.settimeout(within_s)
        self.peer.sendall(line_of(message))
        self.peer.setblocking(False)

    def lines(self):
        """Those that have arrived since the last call; `unread` is the begin of the next one."""
        found = []  # type: list[bytes]
        for _ in range(MOST_PIECES):
            if self.is_gone:
                break
            try:
                data = self.peer.recv(PIECE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_gone = not data
            *more, self.unread = (self.unread + data).split(b"\n")
            found += more
        return found

    def close(self):
        self.is_gone = True
        self.peer.close()
