"""A run that is followed: its complete checkpoints, as they come, and where its files are here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from clusterctl.remote.node_threads import start_thread
from clusterctl.serve.wanted import Sealed, is_name
from trainer.runlog import run_files

CONFIG, MANIFEST = "config.json", "manifest.json"
EVERY_S = 1.0  # between two looks into a folder


class Source(Protocol):
    """What a server asks of a run."""

    name: str
    folder: Path  # on this machine, with config.json and samples/
    sealed: list[Sealed] | None  # complete checkpoints, at the last look; None before the first
    why: str  # what is wrong with looking now; "" for nothing
    broken: dict[str, str]  # checkpoints whose weights cannot be had, and why

    def config(self) -> dict[str, Any] | None:
        """The run's; None where it has not come yet. Raises ValueError in words."""

    def wants(self, names: list[str]) -> None:
        """Which checkpoints will be needed, the most urgent first."""

    def is_here(self, name: str) -> bool:
        """Whether the weights of a checkpoint can be read on this machine."""

    def finished(self, name: str) -> None:
        """Nothing is left to make of it."""

    def start(self) -> None: ...

    def wait(self, timeout_s: float) -> bool:
        """Whether its config is there, after `timeout_s` at the latest."""

    def close(self) -> None: ...


class LocalRun:
    """A run directory that this machine sees. Looked at in a thread: its disk may hang."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder.absolute(), folder.absolute().name
        self.sealed: list[Sealed] | None = None
        self.why = ""
        self.broken: dict[str, str] = {}
        self._over = threading.Event()

    def config(self) -> dict[str, Any] | None:
        return read_config(self.folder)

    def wants(self, names: list[str]) -> None: ...

    def is_here(self, name: str) -> bool:
        return True

    def finished(self, name: str) -> None: ...

    def start(self) -> None:
        self._look()
        start_thread(self._follow)

    def wait(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        self._over.set()

    def _follow(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            self.sealed, self.why = sealed_in(self.folder), ""
        except OSError as error:
            self.why = f"{self.folder} cannot be read: {error.strerror}"


def read_config(folder: Path) -> dict[str, Any] | None:
    """Of a run directory. Raises ValueError in words."""
    try:
        return run_files.read_object(folder, CONFIG)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{folder / CONFIG} cannot be read: {error.strerror or error}") from None


def sealed_in(folder: Path) -> list[Sealed]:
    """Complete checkpoints of a run directory. Raises OSError."""
    found = []
    for path in folder.iterdir():
        if not is_name(path.name):
            continue
        try:
            status = (path / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # not complete, or deleted just now
        found.append(Sealed(path.name, status.st_mtime, f"{status.st_mtime_ns} {status.st_size}"))
    return found
