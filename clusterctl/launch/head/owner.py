"""One supervisor of a run at a time: a lock in the run directory, and who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl.errors import ClusterctlError
from clusterctl.payload.files.private import open_own, own_path

FILE = ".owner"
HANDOVER_S = 5.0  # for an older supervisor that is about to end


class Owned(ClusterctlError):
    """Another program supervises the run."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Owner:
    """The program that supervises a run; `since_s` is unix time."""

    host: str
    pid: int
    since_s: float

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def text(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"process {self.pid} on {self.host} since {since}"


def take(run_dir: Path) -> int:
    """Lock the run for this process, until it ends; returns the descriptor. Raises `Owned`."""
    lock = open_own(str(run_dir / FILE), os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + HANDOVER_S
    while not _locks(lock):
        if time.monotonic() > deadline:
            owner = _read(lock)
            os.close(lock)
            raise Owned(f"this run is supervised already, by {owner.text if owner else 'another'}")
        time.sleep(0.1)
    own = Owner(socket.gethostname(), os.getpid(), time.time())
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(asdict(own)).encode() + b"\n", 0)
    return lock


def give_back(run_dir: Path, lock: int) -> None:
    """After the end of the run: nobody asks for it any more."""
    (run_dir / FILE).unlink(missing_ok=True)
    os.close(lock)


def find(run_dir: Path) -> Owner | None:
    """Who supervises the run now; None where nobody does."""
    with contextlib.suppress(OSError):
        lock = open_own(str(run_dir / FILE), os.O_RDWR)
        try:
            # Shared, so that of two that ask at once neither takes the other for an owner.
            return None if _locks(lock, fcntl.LOCK_SH) else _read(lock)
        finally:
            os.close(lock)
    return None


def _locks(lock: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(lock: int) -> Owner | None:
    try:
        data = json.loads(os.pread(lock, 4096, 0))
        return Owner(str(data["host"]), int(data["pid"]), float(data["since_s"]))
    except (ValueError, LookupError, TypeError):
        return None  # it is about to write it


def socket_path(run_id: str) -> Path:
    """Where the supervisor of a run listens on its machine; the kernel allows 107 bytes."""
    check = zlib.crc32(run_id.encode())
    return Path(own_path(f"head-{run_id[-24:]}-{check:08x}.sock"))
