"""Jump hosts shared by all nodes behind them, and ProxyCommand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from clusterctl.errors import TransportError
from clusterctl.transport.patched_transport import PatchedTransport

# A jump host that failed is not tried again so soon: each node behind it would wait through its
# limits in turn (12 nodes behind a silent one took 49 s).
FAILURE_HOLDS_S = 10.0


class JumpPool:
    """Connections to jump hosts, each shared by all nodes behind it; the last user closes it.

    sshd's MaxSessions does not count direct-tcpip channels: one login for a thousand nodes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[object, _Slot] = {}
        self._failures: dict[object, tuple[TransportError, float]] = {}

    def borrow(
        self, key: object, connect: Callable[[], PatchedTransport]
    ) -> tuple[PatchedTransport, Callable[[], None]]:
        """A live connection and the function that releases it. Raises what `connect` raises."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            slot.users += 1
        try:
            with slot.lock:  # the first one connects, the others wait for it
                if slot.transport is None or not slot.transport.is_active():
                    slot.transport = self._connect(key, connect)
                return slot.transport, lambda: self._release(key, slot)
        except BaseException:
            self._release(key, slot)
            raise

    def _connect(self, key: object, connect: Callable[[], PatchedTransport]) -> PatchedTransport:
        with self._lock:
            failure, failed_at = self._failures.get(key, (None, 0.0))
        if failure is not None and time.monotonic() - failed_at < FAILURE_HOLDS_S:
            raise TransportError(failure.phase, str(failure), hint=failure.hint)
        try:
            return connect()
        except TransportError as error:
            with self._lock:
                self._failures[key] = (error, time.monotonic())
            raise

    def _release(self, key: object, slot: _Slot) -> None:
        with self._lock:
            slot.users -= 1
            if slot.users:
                return
            if self._slots.get(key) is slot:
                del self._slots[key]
        if slot.transport is not None:
            slot.transport.close()


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    transport: PatchedTransport | None = None
    users: int = 0


def proxy_command(command: str) -> tuple[socket.socket, Callable[[], None]]:
    """Start a ProxyCommand on a socket pair: our end, and a function that ends the command."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(  # noqa: S602 - the user's own ssh_config, run as ssh runs it
            f"exec {command}",
            shell=True,
            executable=os.environ.get("SHELL") or "/bin/sh",
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise TransportError("tcp", f"cannot start ProxyCommand: {error}") from None
    finally:
        theirs.close()

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(1.0)

    return ours, end
