"""Commands over one connection: run to the end, or keep running as a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from clusterctl.transport import paramiko_import  # noqa: F401 - before paramiko

# isort: split
import paramiko
from paramiko.ssh_exception import ChannelException, SSHException

from clusterctl.errors import TransportError
from clusterctl.transport.base import Completed, Limits, Progress
from clusterctl.transport.patched_transport import PatchedTransport, SafeChannel
from clusterctl.transport.process import Process, lost

STDERR_TAIL_BYTES = 16 << 10
MAX_LINE_BYTES = 16 << 20
WRITE_TIMEOUT_S = 10.0
# sshd keeps the channel open while a background process of an ended command holds its stdout.
# This much silence after the exit status is the end.
AFTERLIFE_S = 1.0


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

        Raises `TransportError` with phase channel or command. A command that is late is sent
        SIGTERM, and its channel is closed.
        """
        process = self._start(command)
        self._progress.enter("command")
        try:
            return _run(process, stdin, timeout_s, max_bytes)
        finally:
            process.close()

    def stream(self, command: str, stdin: bytes) -> ParamikoStream:
        """Start `command`, send `stdin` and leave its stdin open.

        Raises `TransportError` with phase channel or command.
        """
        process = self._start(command)
        self._progress.enter("command")
        stream = ParamikoStream(process)
        try:
            stream.write(stdin)
        except BaseException:
            stream.close()
            raise
        return stream

    def _start(self, command: str) -> Process:
        self._progress.enter("channel")
        deadline = time.monotonic() + self._limits.channel_s
        try:
            channel = self.transport.open_session(timeout=self._limits.channel_s)
        except ChannelException as error:
            hint = "sshd's MaxSessions limits the commands on one connection"
            raise TransportError(
                "channel", f"the node opens no session: {error.text}", hint=hint
            ) from None
        except (SSHException, EOFError, OSError) as error:
            if self.transport.is_active():
                raise TransportError(
                    "channel", f"no session within {self._limits.channel_s:g} s"
                ) from None
            raise TransportError("channel", lost(error)) from None
        assert isinstance(channel, SafeChannel)
        process = Process(self.transport, channel)
        try:
            process.exec(command, deadline)
        except BaseException:
            process.close()
            raise
        return process

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> ParamikoConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _run(process: Process, stdin: bytes, timeout_s: float, max_bytes: int) -> Completed:
    started = process.started
    out, err = bytearray(), bytearray()
    truncated, stdin_open = False, True
    rest = memoryview(stdin)
    quiet_since = started
    while True:
        process.wake.rearm()
        now = time.monotonic()
        chunk, chunk_err = process.read(), process.read_stderr()
        if chunk or chunk_err:
            quiet_since = now
        for buffer, data in ((out, chunk), (err, chunk_err)):
            capacity = max_bytes - len(buffer)
            buffer += data[:capacity]
            truncated = truncated or capacity < len(data)
        sent = process.write(rest) if rest else 0
        rest = rest[sent:]
        if stdin_open and not rest:
            process.close_stdin()
            stdin_open = False
        if process.status_known() and (
            process.at_end() or (now - quiet_since > AFTERLIFE_S and not process.channel.closed)
        ):
            rc = process.status()
            assert rc is not None
            seconds = time.monotonic() - started
            return Completed(rc, bytes(out), bytes(err), seconds, truncated)
        if now - started >= timeout_s:
            process.kill()
            raise TransportError("command", f"still running after {timeout_s:g} s")
        if chunk or chunk_err or sent:
            continue
        left = timeout_s - (now - started)
        process.wake.wait(min(left, AFTERLIFE_S) if process.status_known() else left)


class ParamikoStream:
    """A command that keeps running. One thread may read while another writes."""

    def __init__(self, process: Process) -> None:
        self._process = process
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
                sent = self._process.write(rest)
                rest = rest[sent:]
                if sent:
                    moved = time.monotonic()
                elif time.monotonic() - moved > WRITE_TIMEOUT_S:
                    raise TransportError("command", "the command does not read its stdin")
                else:
                    # `wake` belongs to the reader.
                    with self._process.channel.lock:
                        self._process.channel.out_buffer_cv.wait(0.2)

    def read_line(self, timeout_s: float) -> bytes | None:
        """See `base.Stream`. A line over 16 MiB raises `TransportError("parse")`."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while True:
                self._process.wake.rearm()
                line = self._cut_line()
                if line is not None:
                    return line
                if self._pump():
                    continue
                if self._process.at_end():
                    return self._last_line()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._process.wake.wait(left)

    def read_some(self, limit: int) -> bytes:
        """See `base.Stream`. The rest stays on the node once its window is full."""
        with self._reading:
            if not self._buffer and not self._pump() and self._process.at_end():
                if self._process.is_lost():
                    raise self._process.loss()
                raise EOFError
            some = bytes(self._buffer[:limit])
            del self._buffer[:limit]
            self._scanned = 0
            return some

    def on_readable(self, call: Callable[[], None]) -> None:
        """See `base.Stream`. `call` runs in the connection's thread: it must be quick."""
        self._process.wake.call = call
        call()

    def _cut_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
            if self._scanned > MAX_LINE_BYTES:
                raise TransportError("parse", f"a line of over {MAX_LINE_BYTES >> 20} MiB")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    def _last_line(self) -> bytes:
        if not self._buffer:
            if self._process.is_lost():
                raise self._process.loss()
            raise EOFError
        line, self._buffer, self._scanned = bytes(self._buffer), bytearray(), 0
        return line

    def _pump(self) -> bool:
        """Move what has arrived into the buffers; True when there was anything."""
        chunk, chunk_err = self._process.read(), self._process.read_stderr()
        self._buffer += chunk
        if chunk_err:
            self._stderr += chunk_err
            del self._stderr[:-STDERR_TAIL_BYTES]
        return bool(chunk or chunk_err)

    def close_stdin(self) -> None:
        self._process.close_stdin()

    def wait(self, timeout_s: float) -> int | None:
        """See `base.Stream`. Unread output over 16 MiB stays with the node, which then waits."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while not self._process.status_known():
                self._process.wake.rearm()
                if len(self._buffer) < MAX_LINE_BYTES and self._pump():
                    continue
                left = deadline - time.monotonic()
                if left <= 0 or self._process.status_known():
                    break
                self._process.wake.wait(left)
        return self._process.status()

    def stderr_tail(self) -> str:
        """What has arrived of the last 16 KiB of stderr."""
        if self._reading.acquire(blocking=False):  # else the reader does it
            try:
                if self._process.channel.recv_stderr_ready():
                    self._pump()
            except TransportError:
                pass  # the reader raises it; what has arrived so far is the answer here
            finally:
                self._reading.release()
        return bytes(self._stderr).decode(errors="replace")

    def close(self) -> None:
        self._process.close()


def sftp(connection: ParamikoConnection) -> paramiko.SFTPClient:
    """An sftp session on the connection. Raises `TransportError("channel")`."""
    try:
        client = connection.transport.open_sftp_client()
    except (SSHException, EOFError, OSError) as error:
        raise TransportError("channel", f"no sftp on the node: {error}") from None
    if client is None:
        raise TransportError("channel", "no sftp on the node")
    return client
