"""A file system that serves the files of a folder until it is told to hang, as a lost NFS server does."""

from __future__ import annotations

import os
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.clusterctl.stacks.stalling_mount import (
    BATCH_FORGET,
    ENOENT,
    ENOSYS,
    FLUSH,
    FORGET,
    GETATTR,
    INIT,
    INTERRUPT,
    LOOKUP,
    OPEN,
    READ,
    RELEASE,
    StallingMount,
)


@cache
def why_no_fuse() -> str | None:
    """Why there can be no mount here; None: there can. Tries it: containers often may open the device only."""
    if os.geteuid() != 0:
        return "mounting needs root"
    try:
        with tempfile.TemporaryDirectory() as folder, StallingMount(Path(folder) / "mount"):
            return None
    except OSError as error:
        return f"/dev/fuse: {error.strerror or error}"


class ClipMount(StallingMount):
    """Read-only; `source`'s files appear under `folder`. No caching, so that every read comes here."""

    def __init__(self, source: Path, folder: Path) -> None:
        super().__init__(folder)
        self._files = sorted(path for path in source.iterdir() if path.is_file())
        self._nodes = {path.name: node for node, path in enumerate(self._files, start=2)}
        self._requests: list[tuple[int, int, int, bytes]] = []
        self._stalls: frozenset[int] = frozenset()
        self._error = 0
        self.failed = threading.Semaphore(0)  # released once for each request that fails
        self.stalled = threading.Semaphore(0)  # released once for each request that hangs
        self._open = True

    @contextmanager
    def hanging(self, *opcodes: int) -> Iterator[None]:
        """Answer no request of these kinds (default: reads) for the while."""
        with self._lock:
            self._stalls = frozenset(opcodes or (READ,))
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def failing(self, code: int) -> Iterator[None]:
        """Answer every request about a file with this error for the while, as a network file system
        does whose server starts again."""
        self._error = code
        try:
            yield
        finally:
            self._error = 0

    def release(self) -> None:
        with self._lock:
            self._stalls = frozenset()
            requests, self._requests = self._requests, []
        for request in requests:
            self._now(*request)

    def _answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        with self._lock:
            stalls = opcode in self._stalls
            if stalls:
                self._requests.append((opcode, unique, node, body))
        if stalls:
            self.stalled.release()
        else:
            self._now(opcode, unique, node, body)

    def _now(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if self._error and opcode in (LOOKUP, GETATTR, OPEN, READ):
            self._reply(unique, b"", self._error)
            self.failed.release()
        elif opcode == LOOKUP:
            found = self._nodes.get(os.fsdecode(body.rstrip(b"\0")))
            if found is None:
                self._reply(unique, b"", ENOENT)
            else:
                self._reply(
                    unique, struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self._facts(found)
                )
        elif opcode == GETATTR:
            self._reply(unique, struct.pack("<QII", 0, 0, 0) + self._facts(node))
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with self._files[node - 2].open("rb") as file:
                self._reply(unique, os.pread(file.fileno(), size, offset))
        elif opcode in (INIT, OPEN, RELEASE, FLUSH, FORGET, BATCH_FORGET, INTERRUPT):
            super()._answer(opcode, unique, node, body)
        else:
            self._reply(unique, b"", ENOSYS)

    def _facts(self, node: int) -> bytes:
        size = 4096 if node == 1 else self._files[node - 2].stat().st_size
        mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o444
        words = (node, size, -(-size // 512), 0, 0, 0)
        return struct.pack("<6Q10I", *words, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
