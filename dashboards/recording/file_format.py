"""The file of a recording: blocks one behind the other, each whole or not there.

A block says its length, the times it covers and a checksum of its sections (zlib). Blocks are only
ever appended: whoever is killed while writing leaves a torn last one, which a reader skips and the
next writer cuts off. Nothing but headers is read to open a file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from clusterctl.payload.files.private import open_own

MAGIC = b"clusterctl recording 1\n"
MARK = b"\xc7BLK"
_HEAD = struct.Struct("<4scIIIIdd")  # mark, kind, checksum, lengths of three sections, times
SECTIONS = 3
KEY, DEEP, ROUNDS = b"k", b"K", b"r"
"""Kinds: KEY all that is known of the nodes, DEEP that and the run, ROUNDS what changed since."""
LEVEL = 6
# Of one section, unpacked: ten times what 1,000 nodes of 8 GPUs say, and four times their hour of
# rows (the last section). A small file must not unpack to all of the memory.
MOST_BYTES = (64 << 20, 64 << 20, 256 << 20)
LATEST_S = 1e11  # year 5138


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block lies and what it covers."""

    path: Path
    at: int  # of its first section
    kind: bytes
    checksum: int
    lengths: tuple[int, ...]
    first_s: float
    last_s: float

    @property
    def is_key(self) -> bool:
        return self.kind in (KEY, DEEP)


def pack(kind: bytes, sections: Sequence[bytes], first_s: float, last_s: float) -> bytes:
    """The bytes of one block. Raises `ValueError` for a section that no reader would take."""
    for section, most in zip(sections, MOST_BYTES, strict=True):
        if len(section) > most:
            raise ValueError(f"a round of {len(section) >> 20} MiB is too long for a recording")
    packed = [zlib.compress(section, LEVEL) for section in sections]
    body = b"".join(packed)
    head = _HEAD.pack(MARK, kind, zlib.crc32(body), *map(len, packed), first_s, last_s)
    return head + body


def is_recording(path: Path) -> bool:
    """Whether the file begins as one. Raises `OSError` when it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def older(path: Path) -> Path:
    """Where the first half of a recording went when it grew too long."""
    return path.with_name(path.name + ".1")


def blocks(path: Path) -> Iterator[Block]:
    """Headers of all blocks that are whole by their length. Raises `OSError`."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            return
        at = len(MAGIC)
        while True:
            file.seek(at)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            mark, kind, checksum, *rest = _HEAD.unpack(head)
            lengths, (first_s, last_s) = tuple(rest[:SECTIONS]), rest[SECTIONS:]
            end = at + _HEAD.size + sum(lengths)
            whole = mark == MARK and kind in (KEY, DEEP, ROUNDS) and end <= size
            whole = whole and 0.0 <= first_s <= last_s <= LATEST_S  # the checksum covers no header
            if whole and end < size:
                # A torn block that something was written behind claims bytes of the next one.
                file.seek(end)
                whole = file.read(len(MARK)) in (MARK, MARK[: size - end])
            if not whole:
                found = _next_mark(file, at + 1)
                if found is None:
                    return
                at = found
                continue
            yield Block(path, at + _HEAD.size, kind, checksum, lengths, first_s, last_s)
            at = end


def _next_mark(file: BinaryIO, at: int) -> int | None:
    """Where the next block may begin behind a torn one."""
    file.seek(at)
    before = b""
    while True:
        piece = file.read(1 << 16)
        if not piece:
            return None
        window = before + piece
        found = window.find(MARK)
        if found >= 0:
            return at - len(before) + found
        at += len(piece)
        before = window[-len(MARK) + 1 :]


def gaps(found: Sequence[Block]) -> int:
    """Places between blocks that hold something else: damage. A torn end is none, a writer was killed."""
    count = 0
    ends: dict[Path, int] = {}
    for block in found:
        count += block.at - _HEAD.size != ends.get(block.path, len(MAGIC))
        ends[block.path] = block.at + sum(block.lengths)
    return count


def section(file: BinaryIO, block: Block, number: int) -> bytes | None:
    """One section unpacked; None when the block is damaged. `file` is open on the block's path."""
    file.seek(block.at)
    body = file.read(sum(block.lengths))
    if len(body) != sum(block.lengths) or zlib.crc32(body) != block.checksum:
        return None
    begin = sum(block.lengths[:number])
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(body[begin : begin + block.lengths[number]], MOST_BYTES[number])
    except zlib.error:
        return None
    return text if unpacker.eof else None


class Appender:
    """Appends blocks; at half of `limit_bytes` the file becomes `FILE.1` and a new one begins."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Goes on behind the last whole block of a file that is there.

        Raises `OSError`; `ValueError` for a file that is something else or is being written.
        """
        self.path, self._half = path, max(1 << 12, limit_bytes // 2)
        if path.exists() and path.stat().st_size and not is_recording(path):
            raise ValueError(f"{path} is there and is no recording")
        self._open()

    def _open(self) -> None:
        self._descriptor = open_own(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise ValueError(f"{self.path} is being recorded into already") from None
        self.size = os.fstat(self._descriptor).st_size
        if self.size == 0:
            self._write(MAGIC)
            return
        ends = [block.at + sum(block.lengths) for block in blocks(self.path)]
        end = ends[-1] if ends else len(MAGIC)
        if end < self.size:  # torn by a crash
            os.ftruncate(self._descriptor, end)
            self.size = end

    def append(self, block: bytes) -> None:
        """One block in one call to the system. Raises `OSError`: the disk is full."""
        self._write(block)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            count = os.write(self._descriptor, rest)
            self.size += count
            rest = rest[count:]

    def is_long(self) -> bool:
        """Whether the next block, which must be a key, belongs into a new file."""
        return self.size > self._half

    def rotate(self) -> None:
        os.close(self._descriptor)
        self.path.replace(older(self.path))
        self._open()

    def sync(self) -> None:
        """See to it that a loss of power takes nothing of what was written."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
