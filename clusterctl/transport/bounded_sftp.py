"""An sftp session of which the node's answers take a bounded part of this machine's memory.

paramiko takes packets of up to 16 MB, any number of answers to questions that nobody asked, lists
of folders without end, data ahead of time for a size that the node chooses, and reads as many
attributes of a file as it says, four billion in an hour, whether they are there or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterctl.transport.paramiko_import import paramiko

MOST_PACKET = 1 << 20  # OpenSSH's longest is 256 kB
SPARE = 2  # packets more than requests: the version, and the one that is read now
OPENDIR, READDIR, CLOSE, READ = 11, 12, 4, 5
HANDLE, DATA, NAME, ATTRS = 102, 103, 104, 105
# What attributes have by their flags: bytes of size, owners, mode and times; then named ones.
LENGTHS, EXTENDED = {1: 8, 2: 8, 4: 4, 8: 8}, 1 << 31
REQUEST_BYTES = 1 << 15  # what every server answers at once
AHEAD_BYTES = 2 << 20  # under way: they hide the way to another continent


class BoundedSftp(paramiko.SFTPClient):
    """Raises `SSHException` for what no server sends, and OSError for what it refuses."""

    packets = 0
    request_number = 1  # paramiko's count of requests, from 1 on

    def entries(self, path: str, most: int) -> list[Any]:
        """What is in a folder there, names that are one. At most one more than `most` entries."""
        kind, told = self._asked(OPENDIR, path)
        if kind != HANDLE:
            raise paramiko.SSHException("the sftp server opens no folder")
        attributes: Any = paramiko.SFTPAttributes._from_msg  # type: ignore[attr-defined]
        handle, found = told.get_string(), list[Any]()
        while len(found) <= most:
            try:
                kind, told = self._asked(READDIR, handle)
            except EOFError:
                self._asked(CLOSE, handle)
                return found
            count = told.get_int() if kind == NAME else 0
            if not 0 < count <= MOST_PACKET:
                raise paramiko.SSHException("the sftp server lists nothing")
            for _ in range(min(count, most + 1)):
                name, long = told.get_text(), told.get_text()
                if not name:
                    raise paramiko.SSHException("the sftp server lists a file without a name")
                packet: Any = told.packet
                _check_attributes(packet.getbuffer(), packet.tell())
                entry = attributes(told, name, long)
                found += [entry] if name not in (".", "..") else []
        return found

    def blocks(self, file: Any, at: int, size: int) -> Iterator[bytes]:
        """Bytes `at` to `size` of an open file; less where it ends before.

        Parts are asked for ahead, but never more than `AHEAD_BYTES` behind what has come whole.
        """
        asked: dict[int, tuple[int, int]] = {}
        came: dict[int, bytes] = {}
        ahead = at

        def ask(start: int, length: int) -> None:
            request: Any = self._async_request  # type: ignore[attr-defined]
            place = paramiko.sftp.int64(start)
            asked[request(type(None), READ, file.handle, place, length)] = start, length

        while True:
            while ahead < min(size, at + AHEAD_BYTES):
                length = min(REQUEST_BYTES, size - ahead)
                ask(ahead, length)
                ahead += length
            if not asked:
                return
            kind, said = self._read_packet()
            told = paramiko.Message(said)
            number = told.get_int()
            if number not in asked:
                raise paramiko.SSHException("the sftp server answers what was not asked")
            self._expecting.pop(number, None)  # type: ignore[attr-defined]
            start, length = asked.pop(number)
            data = told.get_string()[:length] if kind == DATA else b""
            if not data:
                size = min(size, start)  # it ends there
            elif len(data) < length:
                ask(start + len(data), length - len(data))
            came[start] = data
            while data := came.pop(at, b""):
                yield data
                at += len(data)

    def _asked(self, kind: int, argument: Any) -> tuple[int, paramiko.Message]:
        request: Any = self._request  # type: ignore[attr-defined]
        found: tuple[int, paramiko.Message] = request(kind, argument)
        return found

    def _read_packet(self) -> tuple[int, bytes]:
        read: Any = self._read_all  # type: ignore[attr-defined]
        size = int.from_bytes(read(4), "big")
        self.packets += 1
        if size > MOST_PACKET:
            raise paramiko.SSHException(f"the sftp server sent a packet of {size:,} bytes")
        if self.packets > self.request_number + SPARE:
            raise paramiko.SSHException("the sftp server answers what was not asked")
        data: bytes = read(size)
        if data[:1] == bytes([DATA]) and size > 9 + REQUEST_BYTES:  # 9: type, id, length
            raise paramiko.SSHException("the sftp server sends more than was asked for")
        if data[:1] == bytes([ATTRS]):
            _check_attributes(memoryview(data), 5)
        return (data[0], data[1:]) if data else (0, b"")


def _check_attributes(data: memoryview, at: int) -> None:
    """Raises where more named attributes are announced than there is room for."""
    flags = int.from_bytes(data[at : at + 4], "big")
    at += 4 + sum(length for flag, length in LENGTHS.items() if flags & flag)
    count = int.from_bytes(data[at : at + 4], "big") if flags & EXTENDED else 0
    if 8 * count > len(data):  # each has two lengths
        raise paramiko.SSHException(f"the sftp server sent {count:,} attributes of a file")
