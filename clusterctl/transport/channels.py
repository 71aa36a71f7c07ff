"""Commands over one connection, each a stream of bytes both ways.

Reads and writes on a channel do not block, and one event stands for all that may happen to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from checks import units
from clusterctl.errors import TransportError
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.paramiko_import import BROKEN, channel_request, paramiko
from clusterctl.transport.patched_transport import PatchedTransport, SafeChannel

CHUNK_BYTES = 1 << 18
STDERR_TAIL_BYTES = 16 << 10
MAX_LINE_BYTES = 16 << 20
WRITE_TIMEOUT_S = 10.0
# sshd keeps the channel open while a background process of an ended command holds its stdout.
# This much silence after the exit status, which may come before the last output, is the end.
AFTERLIFE_S = 1.0


class ParamikoConnection:
    """An authenticated connection to one node; several commands may run on it at once."""

    def __init__(self, transport: PatchedTransport, limits: Limits, progress: Progress) -> None:
        self.transport = transport
        self._limits, self._progress = limits, progress

    def stream(self, command: str, stdin: bytes) -> ParamikoStream:
        self._progress.enter("channel")
        limit_s = self._limits.channel_s
        deadline = time.monotonic() + limit_s
        try:
            channel = self.transport.open_session(timeout=limit_s)
        except paramiko.ChannelException as error:
            message = f"the node opens no session: {error.text}"
            hint = "sshd's MaxSessions limits the commands on one connection"
            raise TransportError("channel", message, hint=hint) from None
        except BROKEN as error:
            late = f"no session within {units.duration(limit_s)}"
            message = late if self.transport.is_active() else _lost(error)
            raise TransportError("channel", message) from None
        assert isinstance(channel, SafeChannel)
        stream = ParamikoStream(self.transport, channel)
        try:
            stream.exec(command, deadline)
            self._progress.enter("command")
            stream.write(stdin)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        self.transport.close()


class _Wake(threading.Event):
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


def _lost(error: BaseException | None) -> str:
    return ": ".join(filter(None, ["the connection was lost", str(error or "")]))


class ParamikoStream:
    """A `base.Stream`. One thread may read while another writes."""

    def __init__(self, transport: PatchedTransport, channel: SafeChannel) -> None:
        self.transport, self.channel = transport, channel
        self._wake = _Wake()
        channel.wake = self._wake.set
        channel.exit_status = None  # type: ignore[assignment] # -1 would be SIGHUP
        channel.in_buffer.set_event(self._wake)
        channel.in_stderr_buffer.set_event(self._wake)
        channel.settimeout(0.0)
        self._buffer, self._stderr = bytearray(), bytearray()
        self._scanned = 0  # bytes of the buffer without a newline
        self._moved = time.monotonic()  # when something arrived
        self._status_seen = False
        self._reading, self._writing = threading.Lock(), threading.Lock()

    def exec(self, command: str, deadline: float) -> None:
        """As Channel.exec_command, which has no time limit. Raises `TransportError`."""
        channel: Any = self.channel
        channel._event_pending()
        self._request("exec", command, wants_reply=True)
        if not channel.event.wait(max(0.0, deadline - time.monotonic())):
            raise TransportError("channel", "the node does not start the command")
        if not channel.event_ready:
            is_active, error = self.transport.is_active(), self.transport.get_exception()
            why = "the node refuses to run commands" if is_active else _lost(error)
            raise TransportError("channel", why)

    def _request(self, name: str, text: str, *, wants_reply: bool) -> None:
        message = channel_request(self.channel, name, wants_reply, text)
        transport: Any = self.transport
        try:
            self.channel.before_end(lambda: transport._send_user_message(message))
        except BROKEN as error:
            raise TransportError("channel", _lost(error)) from None

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        with self._writing:
            moved = time.monotonic()
            while rest:
                sent = self._send(rest)
                rest = rest[sent:]
                if sent:
                    moved = time.monotonic()
                elif time.monotonic() - moved > WRITE_TIMEOUT_S:
                    raise TransportError("command", "the command does not read its stdin")
                else:
                    with self.channel.lock:  # `_wake` belongs to the reader
                        self.channel.out_buffer_cv.wait(0.2)

    def _send(self, data: memoryview) -> int:
        """Number of bytes sent, 0 when the node's window is full."""
        try:
            return self.channel.send(data)
        except TimeoutError:
            return 0
        except BROKEN as error:
            if self.channel.closed and not self._is_lost():
                return len(data)  # the command has ended and no longer reads its stdin
            raise TransportError("command", _lost(error)) from None

    def read_line(self, timeout_s: float) -> bytes | None:
        """A line over 16 MiB raises `TransportError("parse")`."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while True:
                self._wake.rearm()
                end = self._buffer.find(b"\n", self._scanned)
                if end >= 0:
                    line = self._cut(end)
                    del self._buffer[:1]
                    return line
                self._scanned = len(self._buffer)
                if self._scanned > MAX_LINE_BYTES:
                    raise TransportError("parse", f"a line of over {units.size(MAX_LINE_BYTES)}")
                if self._pump():
                    continue
                if self._at_end():
                    return self._last(len(self._buffer))
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                has_ended = self.channel.status_event.is_set()
                self._wake.wait(min(left_s, AFTERLIFE_S) if has_ended else left_s)

    def read_some(self, limit: int) -> bytes:
        """The rest stays on the node once its window is full."""
        with self._reading:
            is_over = not self._buffer and not self._pump() and self._at_end()
            return self._last(limit) if is_over else self._cut(limit)

    def on_readable(self, call: Callable[[], None]) -> None:
        self._wake.call = call
        call()

    def _cut(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return data

    def _last(self, size: int) -> bytes:
        if not self._buffer:
            raise self._loss() if self._is_lost() else EOFError()
        return self._cut(size)

    def _pump(self) -> bool:
        """Move what has arrived into the buffers, which opens the node's window; True for any."""
        channel = self.channel
        try:
            out = channel.recv(CHUNK_BYTES) if channel.recv_ready() else b""
            err = channel.recv_stderr(CHUNK_BYTES) if channel.recv_stderr_ready() else b""
        except BROKEN as error:
            raise TransportError("command", _lost(error)) from None
        self._buffer += out
        if err:
            self._stderr += err
            del self._stderr[:-STDERR_TAIL_BYTES]
        if not out and not err:
            return False
        self._moved = time.monotonic()
        return True

    def _at_end(self) -> bool:
        channel = self.channel
        is_over = bool(channel.eof_received or channel.closed)
        if not is_over and channel.status_event.is_set():
            if not self._status_seen:
                self._status_seen, self._moved = True, time.monotonic()
            is_over = time.monotonic() - self._moved > AFTERLIFE_S
        # Asked last: what arrives with the end is there before it.
        return is_over and not channel.recv_ready() and not channel.recv_stderr_ready()

    def close_stdin(self) -> None:
        with suppress(*BROKEN):  # already closed
            self.channel.shutdown_write()

    def wait(self, timeout_s: float) -> int | None:
        """Unread output over 16 MiB stays with the node, which then waits."""
        deadline = time.monotonic() + timeout_s
        has_ended = self.channel.status_event.is_set
        with self._reading:
            while not has_ended():
                self._wake.rearm()
                if len(self._buffer) < MAX_LINE_BYTES and self._pump():
                    continue
                left_s = deadline - time.monotonic()
                if left_s <= 0 or has_ended():
                    break
                self._wake.wait(left_s)
        if not has_ended():
            return None
        status: int | None = self.channel.exit_status
        if status is None and self._is_lost():
            raise self._loss()
        if status is None:
            raise TransportError("command", "the node closed the command without an exit status")
        return status

    def _is_lost(self) -> bool:
        """The channel ended without a close from the node."""
        return self.channel.closed and not self.channel.closed_by_peer

    def _loss(self) -> TransportError:
        return TransportError("command", _lost(self.transport.get_exception()))

    def stderr_tail(self) -> str:
        """What has arrived of the last 16 KiB of stderr."""
        if self._reading.acquire(blocking=False):  # else the reader does it
            try:
                with suppress(TransportError):  # the reader raises it
                    if self.channel.recv_stderr_ready():
                        self._pump()
            finally:
                self._reading.release()
        return bytes(self._stderr).decode(errors="backslashreplace")

    def kill(self) -> None:
        """Ask sshd (7.9 and newer) to send SIGTERM; older ones ignore it."""
        with suppress(TransportError):  # already gone
            self._request("signal", "TERM", wants_reply=False)

    def close(self) -> None:
        with suppress(*BROKEN):  # the connection is gone, and the channel with it
            self.channel.close()
