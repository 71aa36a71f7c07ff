"""Locks by flock(2), which last as long as the process that holds them: trainer/runlog/locks.py for
programs that run on nodes."""

from __future__ import annotations

import errno
import fcntl
import os

from clusterctl.payload.files.ownership import open_own

HELD = (errno.EAGAIN, errno.EACCES)  # of a lock that another process has; SMB says the second


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Lock an open file or folder; False where another process holds it.

    Raises OSError on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in HELD:
            raise
        return False
    return True


def take_lock(path: str, text: str) -> tuple[int | None, str]:
    """Lock a file and write `text` into it: (descriptor, ""), or (None, its holder's text)."""
    while True:
        lock = open_own(path, os.O_RDWR | os.O_CREAT)
        if not try_lock(lock):
            holder = os.read(lock, 200).decode("utf-8", "replace")
            os.close(lock)
            return None, holder
        try:
            is_still = os.path.samestat(os.fstat(lock), os.lstat(path))
        except OSError:
            is_still = False  # the previous holder has removed it
        if is_still:
            os.truncate(lock, 0)
            os.write(lock, text.encode())
            return lock, ""
        os.close(lock)


def drop_lock(lock: int, path: str) -> None:
    os.unlink(path)
    os.close(lock)
