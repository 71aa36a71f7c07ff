"""A file system whose only file is never read to its end: what a hung NFS or object store looks like.

Speaks the kernel's FUSE protocol itself (uapi/linux/fuse.h), so that it needs no library; root only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import threading
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 36, 42,
)  # fmt: skip
ENOSYS, ENOENT = 38, 2
_libc = ctypes.CDLL(None, use_errno=True)


class StallingMount:
    """A context manager; `path` is the file whose reads hang until `release()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "clip.mp4"
        self._held: list[int] = []
        self._lock = threading.Lock()
        self._open = False

    def __enter__(self) -> StallingMount:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        done = _libc.mount(
            b"stalling", os.fsencode(self.folder), b"fuse.stalling", 0, options.encode()
        )
        if done != 0:
            raise OSError(ctypes.get_errno(), "no FUSE here")
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        _libc.umount2(os.fsencode(self.folder), 2)  # MNT_DETACH
        with contextlib.suppress(OSError):
            os.close(self._device)

    def release(self) -> None:
        """Answer every read that hangs, and all later ones."""
        with self._lock:
            self._open = True
            held, self._held = self._held, []
        for unique in held:
            self._reply(unique, b"x")

    def stall(self) -> None:
        with self._lock:
            self._open = False

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:
                return  # unmounted
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            self._answer(opcode, unique, node, request[40:])

    def _answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode == INIT:
            _, minor, ahead, _ = struct.unpack_from("<IIII", body)
            self._reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), ahead, 0, 12, 9, 4096, 1, 1, 0, 0))  # fmt: skip
        elif opcode == GETATTR:
            self._reply(unique, struct.pack("<QII", 1, 0, 0) + _attributes(node))
        elif opcode == LOOKUP:
            if body.rstrip(b"\0") == b"clip.mp4":
                self._reply(unique, struct.pack("<QQQQII", 2, 0, 1, 1, 0, 0) + _attributes(2))
            else:
                self._reply(unique, b"", ENOENT)
        elif opcode == OPEN:
            self._reply(unique, struct.pack("<QII", 1, 1, 0))  # direct: no page cache between
        elif opcode == READ:
            with self._lock:
                hangs = not self._open
                if hangs:
                    self._held.append(unique)
            if not hangs:
                self._reply(unique, b"")
        elif opcode in (RELEASE, FLUSH):
            self._reply(unique, b"")
        elif opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
            self._reply(unique, b"", ENOSYS)

    def _reply(self, unique: int, body: bytes, error: int = 0) -> None:
        with contextlib.suppress(OSError):  # the reader was killed meanwhile
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
    return struct.pack("<6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
