"""Locks of files and folders by flock(2), which last as long as the process that holds them.

A holder may write into its file who it is. Programs that run on nodes have
clusterctl/payload/files/locks.py.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import time
from pathlib import Path

from trainer.runlog.run_files import open_plain

RETRY_S = 0.02
HOLDER_BYTES = 512
_HELD = (errno.EAGAIN, errno.EACCES)  # of a lock that another process has; SMB says the second


class Held(BlockingIOError):
    """Another process has the lock; `strerror` is what it wrote into the file."""


class NoLocks(OSError):
    """The file system has no locks."""


def hold(fd: int, wait_s: float = 0.0, *, shared: bool = False) -> bool:
    """Lock an open file or folder; False when another process has held it for all of `wait_s`.

    Raises `NoLocks`.
    """
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    how |= 0 if wait_s == math.inf else fcntl.LOCK_NB
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, how)
            return True
        except OSError as error:
            if error.errno not in _HELD:
                raise NoLocks(error.errno, error.strerror) from None
        if time.monotonic() >= end:
            return False
        time.sleep(RETRY_S)


def is_named(fd: int, path: Path) -> bool:
    """Whether an open file still has this name: its holder before may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def take(path: Path, wait_s: float = 0.0, mode: int = 0o600) -> int:
    """Lock the plain file of this name, made where it is missing; closing its descriptor frees it.

    Raises `Held` after `wait_s`, `NoLocks`, and OSError where the file cannot be opened.
    """
    end = time.monotonic() + wait_s
    while True:
        fd = open_plain(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            is_ours = hold(fd)
            if is_ours and is_named(fd, path):
                return fd
            if not is_ours and time.monotonic() >= end:
                raise Held(
                    errno.EAGAIN, os.pread(fd, HOLDER_BYTES, 0).decode(errors="replace").strip()
                )
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(0 if is_ours else RETRY_S)


def holder_text(pid: int, host: str, since_s: float) -> str:
    """Which process holds something; `since_s` is unix time."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_s))
    return f"process {pid} on {host} since {since}"


def write_holder(fd: int, text: str) -> None:
    """Over what is there, in one piece and onto the disk: a reader never finds the file empty, and
    another machine sees it now. Raises OSError."""
    os.pwrite(fd, text.ljust(HOLDER_BYTES).encode() + b"\n", 0)
    os.fsync(fd)
