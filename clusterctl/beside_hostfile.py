"""Files of a cluster that lie beside its hostfile: where they are, and a lock to change them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from clusterctl.errors import ClusterctlError, UsageError
from trainer.runlog import locks

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
    with contextlib.ExitStack() as held:
        try:
            held.callback(os.close, locks.take(lock, LOCK_S, 0o666))
            is_held = True
        except locks.NoLocks:
            is_held = False
        except locks.Held:
            raise error(f"{path} was not changed: another command holds {lock.name}") from None
        except OSError as why:
            text = f"{lock} is a link" if why.errno == errno.ELOOP else why.strerror
            raise error(f"{path} was not changed: {text}") from None
        held.callback(lock.unlink, missing_ok=True)
        yield is_held
