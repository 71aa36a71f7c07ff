"""A home of its own for every test, and ways to be a bad node."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clusterctl.launch.harness import wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ~ with a .ssh in it: neither the developer's keys nor settings take part."""
    path = tmp_path / "home"
    (path / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


@pytest.fixture
def agent(home: Path) -> Iterator[Path]:
    """The socket of an empty agent of ssh's, which is not in $SSH_AUTH_SOCK."""
    path = home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    wait_until(lambda: _listens(path))  # its socket is there before it listens
    yield path
    process.terminate()
    process.wait(10)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


class Listener:
    """A port on 127.0.0.1 that says `first` to everyone and then nothing, or hangs up."""

    def __init__(self, first: bytes, hang_up: bool) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self.visits = 0
        self._first, self._hang_up = first, hang_up
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = self._server.accept()
                self.visits += 1
                with contextlib.suppress(OSError):
                    visitor.sendall(self._first)
                if self._hang_up:
                    visitor.close()
                else:
                    self._kept.append(visitor)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for visitor in self._kept:
            visitor.close()
        self._thread.join(5)


@pytest.fixture
def listener() -> Iterator[Callable[..., Listener]]:
    """`listener(b"hello", hang_up=False).port`"""
    made: list[Listener] = []

    def make(first: bytes = b"", hang_up: bool = False) -> Listener:
        made.append(Listener(first, hang_up))
        return made[-1]

    yield make
    for one in made:
        one.close()
