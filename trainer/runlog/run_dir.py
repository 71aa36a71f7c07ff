"""Run directories, `outputs/NNN-<label>`, numbered in the order in which they are made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from trainer.errors import TrainerError

LOCK = ".lock"
_NUMBER = re.compile(r"(\d{3,})-")


class RunDirectoryInUse(TrainerError):
    """Another run writes to this directory."""

    exit_code = 2


def next_run_dir(outputs: Path, label: str) -> Path:
    """The directory that `make_run_dir` would make now; makes nothing."""
    numbers = [0]
    if outputs.is_dir():
        numbers += [int(m[1]) for entry in outputs.iterdir() if (m := _NUMBER.match(entry.name))]
    return outputs / f"{max(numbers) + 1:03d}-{label}"


def make_run_dir(outputs: Path, label: str, mode: int = 0o777) -> Path:
    """Make the next free one in an existing folder. Raises OSError."""
    while True:
        path = next_run_dir(outputs, label)
        try:
            path.mkdir(mode)
        except FileExistsError:
            continue  # another run has just taken this number
        return path


def lock(run_dir: Path) -> tuple[Callable[[], None], str]:
    """Lock a directory: how to release it, and why it has no lock. Raises RunDirectoryInUse."""
    file = run_dir / LOCK
    with contextlib.ExitStack() as opened:
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 200, 0).decode(errors="replace").strip()
            raise RunDirectoryInUse(
                f"another run uses {run_dir}: {owner or 'it did not write its process id'}",
                hint="wait for its end or stop it; --run-dir and --outputs name other directories",
            ) from None
        except OSError as error:
            return lambda: None, f"{file}: {error.strerror}"
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"process {os.getpid()} on {socket.gethostname()} since {now}\n"
        with contextlib.suppress(OSError):  # a full disk: it is locked all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, text.encode(), 0)
        return opened.pop_all().close, ""
