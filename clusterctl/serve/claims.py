"""Who makes which videos, where several servers follow one run: claims in the run's own folder.

A server keeps a file in `samples/.serve/`, which it changes every BEAT_S and holds locked. A claim
is a folder named by its videos and a number, with one file, named by its server; it comes and goes
by a rename, whole. Nothing can be renamed to a folder that is not empty, so only one server makes
the next number, also without hard links and locks. A claim counts while its server lives: on one
machine as long as the lock is held, from another one as long as the file still changes by the
watcher's own clock. So a killed server blocks nothing, and no two clocks are compared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl.payload.files.ownership import open_own
from clusterctl.remote.node_threads import start_thread
from clusterctl.runs.owner import Owner, boot_id, read_owner
from trainer.runlog import locks
from trainer.runlog.json_file import parse_object
from trainer.runlog.run_files import Refused, opened_below

FOLDER = ".serve"  # below samples/
CLAIMS = ".claims"  # in the folder of a checkpoint's videos
BEAT_S = 2.0
LOCK_S = 2.0
SILENT_S = 90.0  # of a server on another machine, after which its claims are free: NFS caches 60 s
STOP = ".stop"
_ID = re.compile(r"[0-9a-f]{12}")
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)  # POSIX lets rename say either


@dataclass(frozen=True, slots=True)
class Server:
    """A server that follows a run, as its file says."""

    id: str
    owner: Owner
    presets: str
    log: str  # "" for one at a terminal

    @property
    def text(self) -> str:
        return f"{self.owner.text}, preset {self.presets}"


class Claims:
    """Of this server on one run. A context manager; leaving it frees all claims."""

    def __init__(self, samples: Path, presets: str = "", log: str = "") -> None:
        self.id = secrets.token_hex(6)
        self.is_asked_to_stop = threading.Event()
        self._folder, self._presets, self._log = samples / FOLDER, presets, log
        self._since_s = time.time()
        self._over = threading.Event()
        self._lock = -1
        self._beats = 0
        self._seen: dict[str, tuple[bytes, float]] = {}  # server -> its file, since when

    def __enter__(self) -> Claims:
        """Raises OSError where the folder cannot be written, or leads out of the run directory."""
        if link := _link_to(self._folder):
            raise Refused(link, "it is a link: links are not followed")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._begin()
        start_thread(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for name in (self.id, self.id + STOP):
            (self._folder / name).unlink(missing_ok=True)
        os.close(self._lock)

    @property
    def token_file(self) -> Path:
        """What a node that shares the folder can read: its first bytes are `id`."""
        return self._folder / self.id

    def _begin(self) -> None:
        path = str(self._folder / self.id)
        self._lock = open_own(path, os.O_RDWR | os.O_CREAT)
        with contextlib.suppress(locks.NoLocks):  # others see that the file changes
            locks.hold(self._lock, LOCK_S)  # another server may try it at this moment
        self._beat()

    def _beat(self) -> None:
        self._beats += 1
        own = Owner(socket.gethostname(), os.getpid(), self._since_s, boot_id())
        more = {"presets": self._presets, "log": self._log, "beat": self._beats}
        locks.write_holder(self._lock, self.id + "\n" + json.dumps({**asdict(own), **more}))

    def _keep(self) -> None:
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(OSError):  # a full disk, a server of files that is away
                self._beat()
                if (self._folder / (self.id + STOP)).exists():
                    self.is_asked_to_stop.set()

    def take(self, folder: Path, unit: str) -> bool:
        """Whether the videos `unit` of a folder are this server's now. Raises OSError.

        They may have been finished meanwhile: look after this.
        """
        place = folder / CLAIMS
        if link := _link_to(place) or _link_to(folder):  # videos would be written there
            raise Refused(link, "it is a link: links are not followed")
        place.mkdir(parents=True, exist_ok=True)
        number, holder = _newest(place, unit)
        if holder is not None and (holder == self.id or self.is_alive(holder)):
            return holder == self.id
        draft = self._draft(place)
        draft.mkdir()
        try:
            (draft / self.id).touch()
            draft.rename(place / f"{unit}.{number + 1}")
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in TAKEN:
                return False  # another server was first
            raise
        return True

    def give_back(self, folder: Path, unit: str) -> None:
        place = folder / CLAIMS
        number, holder = _newest(place, unit)
        if holder == self.id:
            draft = self._draft(place)
            with contextlib.suppress(FileNotFoundError):  # all claims were cleared
                (place / f"{unit}.{number}").rename(draft)
            shutil.rmtree(draft, ignore_errors=True)

    def _draft(self, place: Path) -> Path:
        return place / f".{self.id}-{secrets.token_hex(4)}"

    def clear(self, folder: Path) -> None:
        """All of a folder is finished: nobody needs its claims."""
        shutil.rmtree(folder / CLAIMS, ignore_errors=True)

    def is_alive(self, server: str) -> bool:
        path = self._folder / server
        try:
            data = _bytes(path)
        except OSError:
            return False  # it has ended in order
        if _is_here(data):
            return _is_locked(path)
        known, since_s = self._seen.get(server, (b"", 0.0))
        if known != data:
            self._seen[server] = (data, time.monotonic())
            return True
        return time.monotonic() - since_s < SILENT_S

    def sweep(self) -> None:
        """Remove what servers that were killed have left."""
        for path in _files(self._folder):
            if path.name != self.id and not self.is_alive(path.name):
                for left in (path, path.with_name(path.name + STOP)):
                    left.unlink(missing_ok=True)


def servers(samples: Path) -> list[Server]:
    """Those that follow a run now, as far as one look tells: of another machine's, all that have
    not ended in order."""
    found = []
    for path in _files(samples / FOLDER):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            data = _bytes(path)
            text = data.partition(b"\n")[2]
            owner, about = read_owner(text), parse_object(text)
            if owner is not None and (not _is_here(data) or _is_locked(path)):
                facts = str(about["presets"]), str(about["log"])
                found.append(Server(path.name, owner, *facts))
    return found


def ask_to_stop(samples: Path, server: Server) -> None:
    """It sees this within BEAT_S, on whatever machine it is. Raises OSError."""
    (samples / FOLDER / (server.id + STOP)).touch()


def _files(folder: Path) -> list[Path]:
    """Of servers: other files, and what a link leads to, are not theirs."""
    if _link_to(folder) or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _ID.fullmatch(path.name))


def _link_to(folder: Path) -> Path | None:
    """What leads out of the run directory at the end of this path."""
    return next((one for one in (folder.parent, folder) if one.is_symlink()), None)


def _newest(place: Path, unit: str) -> tuple[int, str | None]:
    """The last number of a unit's claims and its server; 0 and None without one."""
    numbers = [0]
    with contextlib.suppress(FileNotFoundError):
        found = [path.name.rpartition(".") for path in place.iterdir()]
        numbers += [int(number) for name, _, number in found if name == unit and number.isdigit()]
    number = max(numbers)
    if not number:
        return 0, None
    try:
        return number, next((place / f"{unit}.{number}").iterdir()).name
    except (OSError, StopIteration):
        return number, None  # it was given back just now


def _bytes(path: Path) -> bytes:
    with opened_below(path.parent, path.name) as (fd, _):
        return os.pread(fd, 1 << 16, 0)


def _is_here(data: bytes) -> bool:
    """Whether a server's file is of this machine, which sees its lock."""
    return f'"boot": "{boot_id()}"'.encode() in data


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not locks.hold(lock)
    except locks.NoLocks:
        return True  # not known to have ended
    finally:
        os.close(lock)
