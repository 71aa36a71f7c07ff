"""One run at a time in a run directory: a second would overwrite and delete its files."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainer.errors import TrainerError

LOCK = ".lock"


class RunDirectoryInUse(TrainerError):
    """Another run writes to this directory."""

    exit_code = 2


def lock(run_dir: Path) -> tuple[Callable[[], None], str]:
    """Take a run directory for this process; the kernel gives it back with the process.

    Returns what gives it back before, and why nothing could be locked, or "" (a filesystem without
    locks). Raises RunDirectoryInUse.
    """
    try:
        fd = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return _nothing, f"{run_dir / LOCK}: {error.strerror}"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(fd, 200, 0).decode(errors="replace").strip()
        os.close(fd)
        raise RunDirectoryInUse(
            f"another run is at work in {run_dir}: {who or 'it does not say who'}",
            hint="wait for its end or stop it; --run-dir and --outputs name other directories",
        ) from None
    except OSError as error:
        os.close(fd)
        return _nothing, f"{run_dir / LOCK}: {error.strerror}"
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()} since {now}\n".encode(), 0)
    except OSError:
        pass  # a full disk: it is locked all the same
    return lambda: os.close(fd), ""


def _nothing() -> None:
    return None
