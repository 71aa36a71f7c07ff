"""Run directories, `outputs/NNN-<label>`, numbered in the order in which they are made."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from trainer.errors import TrainerError
from trainer.runlog import locks, run_files

LOCK, ATTEMPT = ".lock", ".attempt"
FENCE_S = 5.0
_OF_ATTEMPT = re.compile(r", run (\S+) attempt (\d+)$")
_NUMBER = re.compile(r"(\d{3,})-")


class RunDirectoryInUse(TrainerError):
    """Another run writes to this directory."""

    exit_code = 2


class Superseded(TrainerError):
    """A later attempt of the run has begun."""


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


def begun_attempt(run_dir: Path) -> int:
    """The attempt of the run that the launcher has begun last; 0 where no launcher says so.

    A launcher begins another one when it has lost a node of the one before. If that node lives on,
    cut off from the others, what it writes must not come between.
    """
    try:
        with run_files.opened(run_dir / ATTEMPT) as (fd, _):
            return int(os.pread(fd, 20, 0))
    except (OSError, ValueError):
        return 0


def own_attempt() -> int:
    """That of this process, 0 without a launcher."""
    number = os.environ.get("CLUSTERCTL_ATTEMPT", "")
    return int(number) if number.isascii() and number.isdigit() else 0


def launched_s() -> float | None:
    """When this process's launcher began the run's first attempt, unix time; None without one."""
    with contextlib.suppress(ValueError):
        seconds = float(os.environ.get("CLUSTERCTL_LAUNCHED_S", ""))
        return seconds if 0 < seconds < time.time() else None
    return None


def require_newest(run_dir: Path) -> None:
    """Raises `Superseded` where a later attempt than this process's has begun."""
    own, newest = own_attempt(), begun_attempt(run_dir)
    if own and newest > own:
        raise Superseded(
            f"attempt {newest} of this run has begun; this is attempt {own}, which ends"
        )


class Fence:
    """`require_newest` at a step's begin, every few seconds: the file may lie on the network."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._checked_s = run_dir, time.monotonic()

    def check(self) -> None:
        """Raises `Superseded`."""
        now = time.monotonic()
        if now - self._checked_s >= FENCE_S:
            self._checked_s = now
            require_newest(self._run_dir)


def lock(run_dir: Path) -> tuple[Callable[[], None], str]:
    """Lock a directory: how to release it, and why it has no lock. Raises RunDirectoryInUse.

    An earlier attempt of the same run that still holds it is on a node that was lost: it is noted,
    and does not hold up this one.
    """
    file = run_dir / LOCK
    try:
        fd = locks.take(file)
    except locks.Held as held:
        owner = held.strerror or "it did not write its process id"
        earlier = _OF_ATTEMPT.search(owner)
        is_ours = earlier is not None and earlier[1] == os.environ.get("CLUSTERCTL_RUN")
        if earlier is not None and is_ours and int(earlier[2]) < own_attempt():
            return lambda: None, f"it is locked by {owner}"
        raise RunDirectoryInUse(
            f"another run uses {run_dir}: {owner}",
            hint="wait for its end or stop it; --run-dir and --outputs name other directories",
        ) from None
    except OSError as error:
        return lambda: None, f"{file}: {error.strerror}"
    text = locks.holder_text(os.getpid(), socket.gethostname(), time.time())
    if own_attempt():
        text += f", run {os.environ.get('CLUSTERCTL_RUN', '')} attempt {own_attempt()}"
    with contextlib.suppress(OSError):  # a full disk: it is locked all the same
        locks.write_holder(fd, text)
    return partial(os.close, fd), ""
