"""An sftp server in a hostile node's hands, over a socket pair: it answers what a test wants."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from clusterctl.transport.bounded_sftp import BoundedSftp
from tests.clusterctl.hostile.mangle import count

VERSION, STATUS, HANDLE, DATA, NAME, ATTRS = 2, 101, 102, 103, 104, 105
OPEN, READ, READDIR, STAT, FSTAT, OPENDIR = 3, 5, 12, 17, 8, 11
SIZE, PERMISSIONS = 1, 4
# (request's type, its id, its body) -> what is sent back; None hangs up.
Answers = Callable[[int, int, bytes], bytes | None]


def packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, kind) + body


def text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def answer(kind: int, number: int, body: bytes) -> bytes:
    return packet(kind, struct.pack(">I", number) + body)


def attributes(size: int) -> bytes:
    return struct.pack(">IQI", SIZE | PERMISSIONS, size, 0o100644)


def status(number: int, code: int) -> bytes:
    return answer(STATUS, number, struct.pack(">I", code) + text(b"\x1b]0;no\x07") + text(b""))


def listed(number: int, names: list[bytes]) -> bytes:
    rows = b"".join(text(name) + text(name) + attributes(1) for name in names)
    return answer(NAME, number, struct.pack(">I", len(names)) + rows)


def honest(content: bytes, names: list[bytes]) -> Answers:
    """A server with one file everywhere, and one folder with these names, listed once."""
    left = [names] if names else []

    def said(kind: int, number: int, body: bytes) -> bytes:
        if kind in (OPEN, OPENDIR):
            return answer(HANDLE, number, text(b"h"))
        if kind in (STAT, FSTAT):
            return answer(ATTRS, number, attributes(len(content)))
        if kind == READ:
            (length,) = struct.unpack(">I", body[:4])
            at, most = struct.unpack(">QI", body[4 + length : 16 + length])
            data = content[at : at + most]
            return answer(DATA, number, text(data)) if data else status(number, 1)
        if kind == READDIR:
            return listed(number, left.pop()) if left else status(number, 1)
        return status(number, 0)

    return said


def lying(rng: random.Random, true: Answers) -> Answers:
    """Half of the answers are changed, doubled, cut, exchanged or endless."""

    def said(kind: int, number: int, body: bytes) -> bytes | None:
        good = true(kind, number, body)
        way = rng.random()
        if good is None or way < 0.5:
            return good
        count()
        if way < 0.6:
            at = rng.randrange(len(good))
            return good[:at] + rng.randbytes(rng.randrange(9)) + good[at + 1 :]
        if way < 0.7:
            return good * rng.choice([2, 3, 500])
        if way < 0.75:
            return answer(DATA, number, text(b"x" * rng.choice([0, 1, 40_000, 900_000])))
        if way < 0.8:
            return answer(ATTRS, number, attributes(rng.choice([0, 1 << 60, 1 << 20, 7])))
        if way < 0.85:
            return listed(
                number,
                [rng.choice([b"../../x", b"", b"a/b", b"\xff", b"n"])] * rng.choice([0, 1, 2000]),
            )
        if way < 0.9:
            return struct.pack(
                ">IB", rng.choice([0, 1, 1 << 23, (1 << 32) - 1]), 103
            ) + rng.randbytes(50)
        if way < 0.95:
            return status(number, rng.randrange(12))
        return rng.choice([None, b"", rng.randbytes(200), answer(NAME, number, b"\xff" * 4)])

    return said


class _Channel:
    """A socket with what paramiko asks a channel for."""

    def __init__(self, end: socket.socket) -> None:
        self.send, self.recv, self.close = end.send, end.recv, end.close

    def get_name(self) -> str:
        return "socket"


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[BoundedSftp]:
    """A session with a server that speaks so."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0.5)
    thread = threading.Thread(target=_serve, args=(theirs, answers), daemon=True)
    thread.start()
    try:
        yield BoundedSftp(_Channel(ours))  # type: ignore[arg-type]
    finally:
        for end in (ours, theirs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join(5)
        assert not thread.is_alive()


def _serve(end: socket.socket, answers: Answers) -> None:
    with contextlib.suppress(OSError, EOFError):
        exactly(end, struct.unpack(">I", exactly(end, 4))[0])
        end.sendall(packet(VERSION, struct.pack(">I", 3)))
        while True:
            body = exactly(end, struct.unpack(">I", exactly(end, 4))[0])
            said = answers(body[0], struct.unpack(">I", body[1:5])[0], body[5:])
            if said is None:
                end.shutdown(socket.SHUT_RDWR)
                return
            end.sendall(said)


def exactly(end: socket.socket, size: int) -> bytes:
    """So many bytes. Raises EOFError where it ends before."""
    data = b""
    while len(data) < size:
        if not (more := end.recv(size - len(data))):
            raise EOFError
        data += more
    return data
