"""One supervisor of a run at a time: a lock in the run directory, and who holds it.

Where flock(2) holds on one machine alone (NFS with local_lock or nolock, Lustre with localflock,
many FUSE file systems) or not at all (ENOLCK), the file says it: its holder changes it every
BEAT_S, and on another machine it counts for SILENT_S after that.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl.dataclass_json import Misshapen, decode
from clusterctl.errors import ClusterctlError
from clusterctl.payload import proc_files
from clusterctl.payload.files.ownership import open_own
from clusterctl.payload.files.private import name_of_run, own_path
from trainer.runlog import locks
from trainer.runlog.json_file import object_of

FILE = ".owner"
HANDOVER_S = 5.0  # for an older supervisor that is about to end
BEAT_S, SILENT_S = 10.0, 60.0
_SINCE_S = time.time()


class Owned(ClusterctlError):
    """Another program supervises the run."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Owner:
    """The program that supervises a run; `since_s` is unix time, `boot` its machine's boot id."""

    host: str
    pid: int
    since_s: float
    boot: str = ""  # of an older version

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname() and self.boot in ("", boot_id())

    @property
    def text(self) -> str:
        return locks.holder_text(self.pid, self.host, self.since_s)


def take(run_dir: Path) -> int:
    """Hold the run for this process, until it ends; returns the descriptor. Raises `Owned`.

    A lock says so to this machine, and where the file system passes locks on, to all; else the file
    does, which `keep` changes.
    """
    deadline = time.monotonic() + HANDOVER_S
    while True:
        lock = open_own(str(run_dir / FILE), os.O_RDWR | os.O_CREAT)
        is_free, owner = _locks(lock), _read(lock)
        if is_free is not False and (owner is None or not _lives(run_dir, lock, owner, is_free)):
            if locks.is_named(lock, run_dir / FILE):
                write(lock, _own(), 0)
                return lock
        elif time.monotonic() > deadline:
            os.close(lock)
            raise Owned(f"this run is supervised already, by {owner.text if owner else 'another'}")
        os.close(lock)
        time.sleep(0.1)


def keep(run_dir: Path, lock: int, on_loss: Callable[[str], None]) -> None:
    """Show every BEAT_S that this process lives, in a thread of its own: a file system may hang.

    `on_loss(text)` where another supervisor has taken the run: it did not see this one, and two of
    them would end each other's ranks.
    """
    own = _own()

    def work() -> None:
        beat = 0
        while True:
            time.sleep(BEAT_S)
            beat += 1
            with contextlib.suppress(OSError):  # a full disk, a server of files that is away
                other = _read_another(run_dir)
                if other is not None:
                    on_loss(f"{other.text} has taken the run")
                    return
                if not locks.is_named(lock, run_dir / FILE):
                    return  # given back
                write(lock, own, beat)

    threading.Thread(target=work, name="owner", daemon=True).start()


def another(run_dir: Path) -> Owner | None:
    """Who has taken the run of this process; None where nobody has, or the file says nothing."""
    try:
        return _read_another(run_dir)
    except OSError:
        return None


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
            is_free, owner = _locks(lock, shared=True), _read(lock)
            lives = owner is not None and _lives(run_dir, lock, owner, is_free)
            return owner if is_free is False or lives else None
        finally:
            os.close(lock)
    return None


def _locks(lock: int, *, shared: bool = False) -> bool | None:
    """Whether the lock is ours now; None where the file system has no locks."""
    try:
        return locks.hold(lock, shared=shared)
    except locks.NoLocks:
        return None


def _lives(run_dir: Path, lock: int, owner: Owner, is_free: bool | None) -> bool:
    """Whether the process that the file names still holds the run, although the lock is free here:
    on another machine, whose locks may not reach this one, or where there are none."""
    if owner.is_here:
        return is_free is None and owner.pid != os.getpid() and _runs(owner.pid)
    return _now_s(run_dir) - os.fstat(lock).st_mtime < SILENT_S


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended: in a container without an init, nobody takes
    the status of those that have."""
    found = proc_files.read_stat(pid)
    return found is not None and found[1][0] not in "ZX"


def _now_s(run_dir: Path) -> float:
    """The time by the clock that stamps files there: a file server has its own."""
    try:
        with tempfile.NamedTemporaryFile(dir=run_dir, prefix=".now-") as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _own() -> Owner:
    return Owner(socket.gethostname(), os.getpid(), _SINCE_S, boot_id())


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write(lock: int, own: Owner, beat: int) -> None:
    """Raises OSError."""
    locks.write_holder(lock, json.dumps({**asdict(own), "beat": beat}))


def read_owner(data: bytes) -> Owner | None:
    """What the text of such a file says; None where it names no process: somebody else may have
    made the run directory, or its owner is about to write."""
    try:
        found = decode(Owner, object_of(data))
    except Misshapen:
        return None
    is_real = len(found.host) < 256 and 0 < found.pid < 1 << 31 and 0 <= found.since_s < 1e11
    return found if is_real else None


def _read(lock: int) -> Owner | None:
    return read_owner(os.pread(lock, 4096, 0))


def _read_file(run_dir: Path) -> Owner | None:
    """By its name, so that a file system that keeps copies asks its server. Raises OSError."""
    found = open_own(str(run_dir / FILE), os.O_RDONLY)
    try:
        return _read(found)
    finally:
        os.close(found)


def _read_another(run_dir: Path) -> Owner | None:
    """Raises OSError."""
    found, own = _read_file(run_dir), _own()
    is_own = found is None or (found.host, found.pid) == (own.host, own.pid)
    return None if is_own else found


def socket_path(run_id: str) -> Path:
    """Where the supervisor of a run listens on its machine."""
    return Path(own_path(name_of_run("head", "sock", run_id)))
