"""A run on another cluster, `HOST:PATH`: weights are fetched over ssh, as they are needed."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult
from clusterctl.remote.node_threads import Followers
from clusterctl.serve.source import CONFIG, MANIFEST, read_config
from clusterctl.serve.wanted import Sealed, is_name
from clusterctl.transfer import resume
from clusterctl.transport.base import Connection, Transport
from trainer.runlog import locks
from trainer.runlog.atomic_file import part_of, put_in_place
from trainer.runlog.json_file import parse

EVERY_S = 3.0  # between two looks at the folder
TRIES = 2  # of a file whose SHA-256 differs
BESIDE = ("wandb.json", "prompts.txt")  # fetched with the config, where they are
ENCODER = "text_encoder"  # of a run that has its own
WEIGHTS = ("model/", "ema/")
LOCK, PARTIAL = ".fetch.lock", ".fetch-"
MOST_BYTES = 64 << 20  # of a document
MOST_CHECKPOINTS = 20_000  # files and folders of a run
MOST_DOCUMENTS = 64  # of an encoder
MOST_FILES = 100_000  # of a checkpoint
MOST_WEIGHTS = 1 << 46  # bytes of a file


class RemoteRun(Followers):
    """A `Source` whose files are below `copies`. Connects again when the connection is lost."""

    def __init__(self, node: Node, path: str, copies: Path, transport: Transport) -> None:
        super().__init__(Cluster([node], transport))
        self._path = path.removeprefix("~/")
        short = self._path.rstrip("/").rpartition("/")[2]
        self.name = f"{node.name}:{short}"
        self.folder = copies.absolute() / f"{node.name}-{short}"
        self.sealed: list[Sealed] | None = None
        self.why = ""
        self.broken: dict[str, str] = {}
        self._wanted: list[str] = []
        self._known: dict[str, tuple[Any, Sealed]] = {}  # by name, with its folder's time there
        self._has_config = threading.Event()

    def config(self) -> dict[str, Any] | None:
        return read_config(self.folder)

    def wants(self, names: list[str]) -> None:
        self._wanted = list(dict.fromkeys(names))

    def is_here(self, name: str) -> bool:
        return (self.folder / name / MANIFEST).is_file()

    def finished(self, name: str) -> None:
        """Its weights are there, and need no place here."""
        with suppress(OSError):
            replaced = self.folder / f".old-{name}"
            (self.folder / name).rename(replaced)
            shutil.rmtree(replaced)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.__enter__()

    def wait(self, timeout_s: float) -> bool:
        """Whether the config has come."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not (self.why and self.sealed is None):
            if self._has_config.wait(0.1):
                return True
        return self._has_config.is_set()

    def close(self) -> None:
        self.__exit__()

    def report(self, result: NodeResult[Any]) -> None:
        assert result.unreachable is not None
        self.why = result.unreachable.sentence()

    def talk(self, node: Node, connection: Connection) -> None:
        with closing(resume.sftp_over(connection, node)) as sftp:
            while not self.stop.is_set():
                try:
                    self._look(sftp)
                    self.why = ""
                    self._fetch_next(sftp)
                except FileNotFoundError as error:
                    self.why = f"{self._path} is not there: {error.strerror}"
                except EOFError:
                    raise TransportError("command", "the connection was lost") from None
                self.stop.wait(EVERY_S)

    def _look(self, sftp: Any) -> None:
        found: list[Sealed] = []
        before, self._known = self._known, {}
        for entry in resume.entries(sftp, self._path, MOST_CHECKPOINTS):
            if not is_name(entry.filename):
                continue
            when, known = before.get(entry.filename, (None, None))
            if known is None or when != entry.st_mtime:
                try:
                    status = sftp.stat(f"{self._path}/{entry.filename}/{MANIFEST}")
                except FileNotFoundError:
                    continue
                known = Sealed(
                    entry.filename,
                    float(status.st_mtime or 0),
                    f"{status.st_mtime} {status.st_size}",
                )
            self._known[entry.filename] = entry.st_mtime, known
            found.append(known)
        if not self._has_config.is_set():
            self._documents(sftp)
            self._has_config.set()
        self.sealed = found

    def _documents(self, sftp: Any) -> None:
        """Config and encoder, again with each start: small files. Raises FileNotFoundError."""
        self._document(sftp, CONFIG)
        for name in BESIDE:
            with suppress(FileNotFoundError):
                self._document(sftp, name)
        with suppress(FileNotFoundError):
            listed = resume.entries(sftp, f"{self._path}/{ENCODER}", MOST_DOCUMENTS)
            for name in (entry.filename for entry in listed):
                if "/" not in name and name[:1] not in ("", ".") and name.isprintable():
                    self._document(sftp, f"{ENCODER}/{name}")

    def _document(self, sftp: Any, name: str) -> None:
        local = self.folder / name
        local.parent.mkdir(exist_ok=True)
        with part_of(local) as part, part.open("wb") as out:
            resume.get(sftp, f"{self._path}/{name}", out, MOST_BYTES)

    def _fetch_next(self, sftp: Any) -> None:
        """The most urgent checkpoint that is not here; another server may be fetching it."""
        sealed = {one.name for one in self.sealed or ()}
        for name in self._wanted:
            if name in sealed and name not in self.broken and not self.is_here(name):
                with suppress(locks.Held), ExitStack() as held:
                    held.callback(os.close, locks.take(self.folder / LOCK))
                    self._fetch(sftp, name)
                return

    def _fetch(self, sftp: Any, name: str) -> None:
        partial, there = self.folder / f"{PARTIAL}{name}", f"{self._path}/{name}"
        try:
            with closing(sftp.open(f"{there}/{MANIFEST}", "rb")) as file:
                manifest = file.read(MOST_BYTES)
            files = _files(manifest)
        except FileNotFoundError:
            shutil.rmtree(partial, ignore_errors=True)
            return  # deleted meanwhile; the next look shows it
        except (ValueError, KeyError, TypeError, AttributeError):
            self.broken[name] = f"{there}/{MANIFEST} cannot be read"
            return
        if partial.exists() and _bytes(partial / MANIFEST) != manifest:
            shutil.rmtree(partial)  # of another checkpoint of that name
        partial.mkdir(exist_ok=True)
        (partial / MANIFEST).write_bytes(manifest)
        left = sum(size for file, (size, _) in files.items() if not (partial / file).is_file())
        free = shutil.disk_usage(partial).free
        if left > free:
            text = f"{name} needs {units.size(left)} and {self.folder} has {units.size(free)} free"
            raise TransportError("command", text)
        for file, (size, sha256) in files.items():
            if not (partial / file).is_file() and not self._one(
                sftp, there, partial, file, size, sha256
            ):
                shutil.rmtree(partial)
                return
        put_in_place(partial, self.folder / name)

    def _one(self, sftp: Any, there: str, partial: Path, file: str, size: int, sha256: str) -> bool:
        """Whether a file is here now; not where it is gone, or damaged at each try."""
        for left in reversed(range(TRIES)):
            try:
                remote, local = f"{there}/{file}", partial / file
                resume.fetch(sftp, remote, local, size, sha256, self.stop.is_set)
                return True
            except FileNotFoundError:
                return False
            except resume.Damaged as error:
                if not left:
                    self.broken[partial.name.removeprefix(PARTIAL)] = str(error)
        return False


def _files(manifest: bytes) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of the weights, by path. Raises ValueError, KeyError, TypeError for what is
    no manifest, and for a path that leads out of the checkpoint."""
    found: dict[str, tuple[int, str]] = {}
    for name, entry in parse(manifest)["files"].items():
        if name.startswith(WEIGHTS):
            parts = name.split("/")
            if "" in parts or ".." in parts or not name.isprintable() or len(found) >= MOST_FILES:
                raise ValueError(name)
            size, sha256 = entry["size"], entry["sha256"]
            if type(size) is not int or not 0 <= size <= MOST_WEIGHTS:
                raise ValueError(f"size of {name}")
            if not re.fullmatch(r"[0-9a-f]{64}", sha256):
                raise ValueError(f"sha256 of {name}")
            found[name] = size, sha256
    return found


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def split(text: str) -> tuple[str, str] | None:
    """(host, path) of `user@host:path`; None for other words."""
    host, colon, path = text.partition(":")
    is_remote = bool(colon and host and path) and "/" not in host and not Path(text).exists()
    return (host, path) if is_remote else None
