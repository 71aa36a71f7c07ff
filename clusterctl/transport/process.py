"""A command on a channel: non-blocking reads and writes, and one event for all of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from clusterctl.transport import paramiko_import  # noqa: F401 - before paramiko

# isort: split
from paramiko import common
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from clusterctl.errors import TransportError
from clusterctl.transport.patched_transport import PatchedTransport, SafeChannel

CHUNK_BYTES = 1 << 18


class Wake:
    """Set by paramiko's thread for stdout, stderr, window, status and close.

    paramiko's buffers call `clear` whenever they run empty, which would lose the others' signals.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.call: Callable[[], None] | None = None  # for a reader of many streams

    def set(self) -> None:
        self._event.set()
        if self.call is not None:
            self.call()

    def clear(self) -> None: ...

    def rearm(self) -> None:
        self._event.clear()

    def wait(self, timeout_s: float) -> None:
        self._event.wait(max(0.0, timeout_s))


def lost(error: BaseException | None) -> str:
    """The sentence about a connection that broke."""
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
        channel.in_buffer.set_event(self.wake)  # type: ignore[arg-type]
        channel.in_stderr_buffer.set_event(self.wake)  # type: ignore[arg-type]
        channel.settimeout(0.0)
        self.started = time.monotonic()

    def exec(self, command: str, deadline: float) -> None:
        """As Channel.exec_command, which has no time limit. Raises `TransportError`."""
        channel: Any = self.channel
        message = Message()
        message.add_byte(common.cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        channel._event_pending()
        self.send_message(message)
        if not channel.event.wait(max(0.0, deadline - time.monotonic())):
            raise TransportError("channel", "the node does not start the command")
        if not channel.event_ready:
            if not self.transport.is_active():
                raise TransportError("channel", lost(self.transport.get_exception()))
            raise TransportError("channel", "the node refuses to run commands")

    def send_message(self, message: Message) -> None:
        transport: Any = self.transport
        channel: Any = self.channel
        try:
            channel.before_end(lambda: transport._send_user_message(message))
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("channel", lost(error)) from None

    def read(self) -> bytes:
        """What has arrived, b"" for nothing. Raises `TransportError`: reading opens the window."""
        try:
            return self.channel.recv(CHUNK_BYTES) if self.channel.recv_ready() else b""
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("command", lost(error)) from None

    def read_stderr(self) -> bytes:
        try:
            if self.channel.recv_stderr_ready():
                return self.channel.recv_stderr(CHUNK_BYTES)
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("command", lost(error)) from None
        return b""

    def write(self, data: memoryview) -> int:
        """Number of bytes sent, 0 when the node's window is full. Raises `TransportError`."""
        try:
            return self.channel.send(data)
        except TimeoutError:
            return 0
        except (SSHException, EOFError, OSError) as error:
            if self.channel.closed and not self.is_lost():
                return len(data)  # the command has ended and no longer reads its stdin
            raise TransportError("command", lost(error)) from None

    def close_stdin(self) -> None:
        try:
            self.channel.shutdown_write()
        except (SSHException, EOFError, OSError):
            pass  # already closed

    def at_end(self) -> bool:
        """stdout is closed and everything in it has been read."""
        return bool(self.channel.eof_received or self.channel.closed) and not (
            self.channel.recv_ready() or self.channel.recv_stderr_ready()
        )

    def status_known(self) -> bool:
        return self.channel.status_event.is_set()

    def status(self) -> int | None:
        """Exit status, negative for a signal, None while it runs. Raises `TransportError`."""
        if not self.status_known():
            return None
        status: int | None = self.channel.exit_status
        if status is None:
            raise self.loss()
        return status

    def is_lost(self) -> bool:
        """The channel ended without a close from the node."""
        return self.channel.closed and not self.channel.closed_by_peer

    def loss(self) -> TransportError:
        """Why there is no exit status."""
        if self.is_lost():
            return TransportError("command", lost(self.transport.get_exception()))
        return TransportError("command", "the node closed the command without an exit status")

    def kill(self) -> None:
        """Ask sshd (7.9 and newer) to send SIGTERM; older ones ignore it."""
        message = Message()
        message.add_byte(common.cMSG_CHANNEL_REQUEST)
        message.add_int(self.channel.remote_chanid)
        message.add_string("signal")
        message.add_boolean(False)
        message.add_string(signal.SIGTERM.name.removeprefix("SIG"))
        try:
            self.send_message(message)
        except TransportError:
            pass  # already gone

    def close(self) -> None:
        try:
            self.channel.close()
        except (SSHException, EOFError, OSError):
            pass  # the connection is gone, and the channel with it
