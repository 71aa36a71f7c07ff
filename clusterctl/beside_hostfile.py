"""Files of a cluster that lie beside its hostfile: where they are, and a lock to change them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from clusterctl.errors import ClusterctlError, UsageError

LOCK_S = 10.0  # that a change waits for another one


def beside(hostfile: Path, name: str) -> Path:
    """A file of the cluster by the path of its hostfile, or of another such file."""
    return hostfile.with_name(name)


@contextlib.contextmanager
def locked(path: Path, error: type[ClusterctlError] = UsageError) -> Iterator[bool]:
    """Hold a hidden file beside `path` while it is read and changed. Raises `error`.

    The value is False on a file system without locks: there two changes may meet.
    """
    lock = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + LOCK_S
    is_held = False
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as why:
            text = f"{lock} is a link" if why.errno == errno.ELOOP else why.strerror
            raise error(f"{path} was not changed: {text}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except BlockingIOError:
            is_held = False
        except OSError:
            break
        try:
            if is_held and os.path.samestat(os.fstat(descriptor), lock.stat()):
                break
        except FileNotFoundError:
            pass  # the holder before has removed it
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise error(f"{path} was not changed: another command holds {lock.name}")
        time.sleep(0.02)
    try:
        yield is_held
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
