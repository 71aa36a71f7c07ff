"""Commands over one connection: run to the end, or keep running as a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from clusterctl.errors import TransportError
from clusterctl.transport.base import Completed, Limits, Progress
from clusterctl.transport.paramiko_import import BROKEN, paramiko
from clusterctl.transport.patched_transport import PatchedTransport, SafeChannel
from clusterctl.transport.process import Process, lost

STDERR_TAIL_BYTES = 16 << 10
MAX_LINE_BYTES = 16 << 20
WRITE_TIMEOUT_S = 10.0
# sshd keeps the channel open while a background process of an ended command holds its stdout.
# This much silence after the exit status is the end.
AFTERLIFE_S = 1.0
P = TypeVar("P", bound=Process)


class ParamikoConnection:
    """An authenticated connection to one node; several commands may run on it at once."""

    def __init__(self, transport: PatchedTransport, limits: Limits, progress: Progress) -> None:
        self.transport = transport
        self._limits = limits
        self._progress = progress

    def run(
        self, command: str, stdin: bytes, timeout_s: float, max_bytes: int = 16 << 20
    ) -> Completed:
        """Send all of `stdin` while reading; output over `max_bytes` is read and dropped.

        Raises `TransportError` with phase channel or command. A late command is sent SIGTERM.
        """
        process = self._start(Process, command)
        try:
            return _run(process, stdin, timeout_s, max_bytes)
        finally:
            process.close()

    def stream(self, command: str, stdin: bytes) -> ParamikoStream:
        """Start `command`, send `stdin` and leave its stdin open. Raises `TransportError`."""
        stream = self._start(ParamikoStream, command)
        try:
            stream.write(stdin)
        except BaseException:
            stream.close()
            raise
        return stream

    def _start(self, kind: type[P], command: str) -> P:
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
            message = f"no session within {limit_s:g} s"
            message = message if self.transport.is_active() else lost(error)
            raise TransportError("channel", message) from None
        assert isinstance(channel, SafeChannel)
        process = kind(self.transport, channel)
        try:
            process.exec(command, deadline)
        except BaseException:
            process.close()
            raise
        self._progress.enter("command")
        return process

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> ParamikoConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(process: Process, stdin: bytes, timeout_s: float, max_bytes: int) -> Completed:
    started = quiet_since = process.started
    out, err = bytearray(), bytearray()
    truncated, stdin_open = False, True
    rest = memoryview(stdin)
    while True:
        process.wake.rearm()
        now = time.monotonic()
        chunk, chunk_err = process.read()
        if chunk or chunk_err:
            quiet_since = now
        for buffer, data in ((out, chunk), (err, chunk_err)):
            capacity = max_bytes - len(buffer)
            buffer += data[:capacity]
            truncated = truncated or capacity < len(data)
        sent = process.send(rest) if rest else 0
        rest = rest[sent:]
        if stdin_open and not rest:
            process.close_stdin()
            stdin_open = False
        if process.status_known() and (
            process.at_end() or (now - quiet_since > AFTERLIFE_S and not process.channel.closed)
        ):
            rc = process.status()
            assert rc is not None
            return Completed(rc, bytes(out), bytes(err), time.monotonic() - started, truncated)
        left_s = timeout_s - (now - started)
        if left_s <= 0:
            process.kill()
            raise TransportError("command", f"still running after {timeout_s:g} s")
        if not (chunk or chunk_err or sent):
            process.wake.wait(min(left_s, AFTERLIFE_S) if process.status_known() else left_s)


class ParamikoStream(Process):
    """A `base.Stream`. One thread may read while another writes."""

    def __init__(self, transport: PatchedTransport, channel: SafeChannel) -> None:
        super().__init__(transport, channel)
        self._buffer = bytearray()
        self._scanned = 0
        self._stderr = bytearray()
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    def write(self, data: bytes) -> None:
        """All of `data`, or `TransportError` when the node takes none of it for 10 s."""
        rest = memoryview(data)
        with self._writing:
            moved = time.monotonic()
            while rest:
                sent = self.send(rest)
                rest = rest[sent:]
                if sent:
                    moved = time.monotonic()
                elif time.monotonic() - moved > WRITE_TIMEOUT_S:
                    raise TransportError("command", "the command does not read its stdin")
                else:
                    with self.channel.lock:  # `wake` belongs to the reader
                        self.channel.out_buffer_cv.wait(0.2)

    def read_line(self, timeout_s: float) -> bytes | None:
        """A line over 16 MiB raises `TransportError("parse")`."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while True:
                self.wake.rearm()
                end = self._buffer.find(b"\n", self._scanned)
                if end >= 0:
                    line = self._cut(end)
                    del self._buffer[:1]
                    return line
                self._scanned = len(self._buffer)
                if self._scanned > MAX_LINE_BYTES:
                    raise TransportError("parse", f"a line of over {MAX_LINE_BYTES >> 20} MiB")
                if self._pump():
                    continue
                if self.at_end():
                    if not self._buffer:
                        raise self._end()
                    return self._cut(len(self._buffer))
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self.wake.wait(left_s)

    def read_some(self, limit: int) -> bytes:
        """The rest stays on the node once its window is full."""
        with self._reading:
            if not self._buffer and not self._pump() and self.at_end():
                raise self._end()
            return self._cut(limit)

    def on_readable(self, call: Callable[[], None]) -> None:
        """`call` runs in the connection's thread: it must be quick."""
        self.wake.call = call
        call()

    def _cut(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return data

    def _end(self) -> Exception:
        return self.loss() if self.is_lost() else EOFError()

    def _pump(self) -> bool:
        """Move what has arrived into the buffers; True when there was anything."""
        chunk, chunk_err = self.read()
        self._buffer += chunk
        if chunk_err:
            self._stderr += chunk_err
            del self._stderr[:-STDERR_TAIL_BYTES]
        return bool(chunk or chunk_err)

    def wait(self, timeout_s: float) -> int | None:
        """Unread output over 16 MiB stays with the node, which then waits."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while not self.status_known():
                self.wake.rearm()
                if len(self._buffer) < MAX_LINE_BYTES and self._pump():
                    continue
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self.status_known():
                    break
                self.wake.wait(left_s)
        return self.status()

    def stderr_tail(self) -> str:
        """What has arrived of the last 16 KiB of stderr."""
        if self._reading.acquire(blocking=False):  # else the reader does it
            try:
                with suppress(TransportError):  # the reader raises it
                    if self.channel.recv_stderr_ready():
                        self._pump()
            finally:
                self._reading.release()
        return bytes(self._stderr).decode(errors="replace")
