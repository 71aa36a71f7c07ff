"""Locks that last as long as the process that holds them, in this user's own folder."""

from __future__ import annotations

import fcntl
import os
import zlib

from clusterctl.payload.files.private import open_own, own_files, own_path


def take_lock(path: str, text: str) -> tuple[int | None, str]:
    """Lock a file and write `text` into it: (descriptor, ""), or (None, its holder's text)."""
    while True:
        lock = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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


def lock_path(kind: str, *words: str) -> str:
    """Path of a lock in an own folder; removes locks without a holder. Raises `NotPrivate`."""
    for left in own_files(kind + "-*.lock"):
        try:
            lock, _ = take_lock(left, "")
            if lock is not None:
                drop_lock(lock, left)  # of a process that was killed
        except OSError:
            continue  # it was being removed
    text = "-".join(words)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in text)
    check = zlib.crc32(text.encode("utf-8", "backslashreplace"))  # for what is cut and replaced
    return own_path("%s-%s-%08x.lock" % (kind, plain[:150], check))


def drop_lock(lock: int, path: str) -> None:
    os.unlink(path)
    os.close(lock)
