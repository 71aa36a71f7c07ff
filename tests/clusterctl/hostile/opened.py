"""Which files of a folder anybody opens, any process and by any path: inotify's word for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

IN_ACCESS, IN_OPEN, IN_CHANGED = 0x1, 0x20, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200
HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name


@contextlib.contextmanager
def opened_in(*folders: Path) -> Iterator[list[str]]:
    """The list is filled at the end, with a path for each file that was opened, made or taken away."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watcher < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    found: list[str] = []
    try:
        places = {}
        for folder in folders:
            number = libc.inotify_add_watch(
                watcher, os.fsencode(folder), IN_ACCESS | IN_OPEN | IN_CHANGED
            )
            if number < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
            places[number] = folder
        yield found
        with contextlib.suppress(BlockingIOError):
            while data := os.read(watcher, 1 << 16):
                while data:
                    number, _, _, length = HEAD.unpack_from(data)
                    name = data[HEAD.size : HEAD.size + length].rstrip(b"\0")
                    found.append(str(places[number] / os.fsdecode(name)))
                    data = data[HEAD.size + length :]
    finally:
        os.close(watcher)
