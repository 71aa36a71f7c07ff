"""A command on a channel: non-blocking reads and writes, and one event for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.transport.paramiko_import import BROKEN, channel_request
from clusterctl.transport.patched_transport import PatchedTransport, SafeChannel

CHUNK_BYTES = 1 << 18


class Wake(threading.Event):
    """Set by paramiko's thread for stdout, stderr, window, status and close.

    paramiko's buffers call `clear` whenever they run empty, which would lose the others' signals.
    """

    call: Callable[[], None] | None = None  # for a reader of many streams

    def set(self) -> None:
        super().set()
        if self.call is not None:
            self.call()

    def clear(self) -> None: ...

    def rearm(self) -> None:
        super().clear()


def lost(error: BaseException | None) -> str:
    reason = str(error) if error is not None else ""
    return f"the connection was lost: {reason}" if reason else "the connection was lost"


class Process:
    """A remote command; `wake` is set when there is something to read, write or report."""

    def __init__(self, transport: PatchedTransport, channel: SafeChannel) -> None:
        self.transport = transport
        self.channel = channel
        self.wake = Wake()
        channel.wake = self.wake.set
        channel.exit_status = None  # type: ignore[assignment] # -1 would be SIGHUP
        channel.in_buffer.set_event(self.wake)
        channel.in_stderr_buffer.set_event(self.wake)
        channel.settimeout(0.0)
        self.started = time.monotonic()

    def exec(self, command: str, deadline: float) -> None:
        """As Channel.exec_command, which has no time limit. Raises `TransportError`."""
        channel: Any = self.channel
        channel._event_pending()
        self._request("exec", command, wants_reply=True)
        if not channel.event.wait(max(0.0, deadline - time.monotonic())):
            raise TransportError("channel", "the node does not start the command")
        if not channel.event_ready:
            why = "the node refuses to run commands"
            is_active, error = self.transport.is_active(), self.transport.get_exception()
            raise TransportError("channel", why if is_active else lost(error))

    def _request(self, name: str, text: str, *, wants_reply: bool) -> None:
        message = channel_request(self.channel, name, wants_reply, text)
        transport: Any = self.transport
        try:
            self.channel.before_end(lambda: transport._send_user_message(message))
        except BROKEN as error:
            raise TransportError("channel", lost(error)) from None

    def read(self) -> tuple[bytes, bytes]:
        """What has arrived of stdout and stderr. Raises `TransportError`: it opens the window."""
        channel = self.channel
        try:
            out = channel.recv(CHUNK_BYTES) if channel.recv_ready() else b""
            err = channel.recv_stderr(CHUNK_BYTES) if channel.recv_stderr_ready() else b""
        except BROKEN as error:
            raise TransportError("command", lost(error)) from None
        return out, err

    def send(self, data: memoryview) -> int:
        """Number of bytes sent, 0 when the node's window is full. Raises `TransportError`."""
        try:
            return self.channel.send(data)
        except TimeoutError:
            return 0
        except BROKEN as error:
            if self.channel.closed and not self.is_lost():
                return len(data)  # the command has ended and no longer reads its stdin
            raise TransportError("command", lost(error)) from None

    def close_stdin(self) -> None:
        with suppress(*BROKEN):  # already closed
            self.channel.shutdown_write()

    def at_end(self) -> bool:
        channel = self.channel
        has_data = channel.recv_ready() or channel.recv_stderr_ready()
        return bool(channel.eof_received or channel.closed) and not has_data

    def status_known(self) -> bool:
        return self.channel.status_event.is_set()

    def status(self) -> int | None:
        """Exit status, negative for a signal, None while it runs. Raises `TransportError`."""
        if not self.status_known():
            return None
        status: int | None = self.channel.exit_status
        if status is not None:
            return status
        if self.is_lost():
            raise self.loss()
        raise TransportError("command", "the node closed the command without an exit status")

    def is_lost(self) -> bool:
        """The channel ended without a close from the node."""
        return self.channel.closed and not self.channel.closed_by_peer

    def loss(self) -> TransportError:
        return TransportError("command", lost(self.transport.get_exception()))

    def kill(self) -> None:
        """Ask sshd (7.9 and newer) to send SIGTERM; older ones ignore it."""
        with suppress(TransportError):  # already gone
            self._request("signal", "TERM", wants_reply=False)

    def close(self) -> None:
        with suppress(*BROKEN):  # the connection is gone, and the channel with it
            self.channel.close()
