"""Commands over one connection: run to the end, or keep running as a stream."""

from __future__ import annotations

import signal
import threading
import time
from types import TracebackType
from typing import Any

from clusterctl.transport import lean  # noqa: F401 - first of all

# isort: split
import paramiko
from paramiko import common
from paramiko.channel import Channel
from paramiko.message import Message
from paramiko.ssh_exception import ChannelException, SSHException

from clusterctl.errors import TransportError
from clusterctl.transport.base import Completed, Limits, Progress
from clusterctl.transport.wire import Wire, closed_by_peer, watch

CHUNK_BYTES = 1 << 18
STDERR_TAIL_BYTES = 16 << 10
MAX_LINE_BYTES = 16 << 20
WRITE_TIMEOUT_S = 10.0
# A command that has ended while something it left behind still holds its stdout: sshd would keep
# the channel open for as long as that lives. So much silence after the exit status is the end.
AFTERLIFE_S = 1.0


class _Wake:
    """Set by paramiko's thread for stdout, stderr, window, status and close; one waiter looks at all.

    Buffers call `clear` whenever they run empty, which would lose the others' signals.
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None: ...

    def rearm(self) -> None:
        self._event.clear()

    def wait(self, timeout_s: float) -> None:
        self._event.wait(max(0.0, timeout_s))


class ParamikoConnection:
    """An authenticated connection to one node; several commands may run on it at once."""

    def __init__(self, wire: Wire, limits: Limits, progress: Progress) -> None:
        self.wire = wire
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

    def _start(self, command: str) -> _Process:
        self._progress.enter("channel")
        deadline = time.monotonic() + self._limits.channel_s
        try:
            channel = self.wire.open_session(timeout=self._limits.channel_s)
        except ChannelException as error:
            hint = "sshd's MaxSessions limits the commands on one connection"
            raise TransportError("channel", f"the node opens no session: {error.text}", hint=hint) from None  # fmt: skip
        except (SSHException, EOFError, OSError) as error:
            if self.wire.is_active():
                raise TransportError(
                    "channel", f"no session within {self._limits.channel_s:g} s"
                ) from None
            raise TransportError("channel", _lost(error)) from None
        process = _Process(self.wire, channel)
        try:
            process.exec(command, deadline)
        except BaseException:
            process.close()
            raise
        return process

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> ParamikoConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _lost(error: BaseException | None) -> str:
    reason = str(error) if error is not None else ""
    return f"the connection was lost: {reason}" if reason else "the connection was lost"


class _Process:
    """A remote command: non-blocking reads and writes, and one thing to wait on."""

    def __init__(self, wire: Wire, channel: Channel) -> None:
        self.wire = wire
        self.channel = channel
        self.wake = _Wake()
        watch(channel, self.wake.set)
        channel.exit_status = None  # type: ignore[assignment] # -1 would be SIGHUP
        channel.in_buffer.set_event(self.wake)  # type: ignore[arg-type]
        channel.in_stderr_buffer.set_event(self.wake)  # type: ignore[arg-type]
        channel.settimeout(0.0)
        self.started = time.monotonic()

    def exec(self, command: str, deadline: float) -> None:
        """As Channel.exec_command, which waits for the answer without limit."""
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
            if not self.wire.is_active():
                raise TransportError("channel", _lost(self.wire.get_exception()))
            raise TransportError("channel", "the node refuses to run commands")

    def send_message(self, message: Message) -> None:
        wire: Any = self.wire
        channel: Any = self.channel
        try:
            channel.before_end(lambda: wire._send_user_message(message))
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("channel", _lost(error)) from None

    def read(self) -> bytes:
        """What has come, b"" for nothing. Raises `TransportError`: reading also asks for more."""
        try:
            return self.channel.recv(CHUNK_BYTES) if self.channel.recv_ready() else b""
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("command", _lost(error)) from None

    def read_stderr(self) -> bytes:
        try:
            if self.channel.recv_stderr_ready():
                return self.channel.recv_stderr(CHUNK_BYTES)
        except (SSHException, EOFError, OSError) as error:
            raise TransportError("command", _lost(error)) from None
        return b""

    def write(self, data: memoryview) -> int:
        """Bytes taken just now, 0 when the node's window is full. Raises `TransportError`."""
        try:
            return self.channel.send(data)  # type: ignore[arg-type]
        except TimeoutError:
            return 0
        except (SSHException, EOFError, OSError) as error:
            if self.channel.closed and not self.lost():
                return len(data)  # the command has ended: nobody reads its stdin any more
            raise TransportError("command", _lost(error)) from None

    def close_stdin(self) -> None:
        try:
            self.channel.shutdown_write()
        except (SSHException, EOFError, OSError):
            pass  # closed already, which is what was asked for

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

    def lost(self) -> bool:
        """The channel ended without the node having said so."""
        return self.channel.closed and not closed_by_peer(self.channel)

    def loss(self) -> TransportError:
        """Why there is no exit status."""
        if self.lost():
            return TransportError("command", _lost(self.wire.get_exception()))
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
            pass  # gone already

    def close(self) -> None:
        try:
            self.channel.close()
        except (SSHException, EOFError, OSError):
            pass  # the connection is gone, and the channel with it


def _run(process: _Process, stdin: bytes, timeout_s: float, max_bytes: int) -> Completed:
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
            room = max_bytes - len(buffer)
            buffer += data[:room] if room < len(data) else data
            truncated = truncated or room < len(data)
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

    def __init__(self, process: _Process) -> None:
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
                    # Not on `wake`, which belongs to the reader.
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
            if self._process.lost():
                raise self._process.loss()
            raise EOFError
        line, self._buffer, self._scanned = bytes(self._buffer), bytearray(), 0
        return line

    def _pump(self) -> bool:
        """Move what has arrived; stdout only until one line is there, so the node waits for us."""
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
        """The last 16 KiB of stderr, as far as they have arrived."""
        if self._reading.acquire(blocking=False):  # else the reader is at it
            try:
                if self._process.channel.recv_stderr_ready():
                    self._pump()
            except TransportError:
                pass  # the reader will be told; what has come so far is the answer here
            finally:
                self._reading.release()
        return bytes(self._stderr).decode(errors="replace")

    def close(self) -> None:
        self._process.close()


def sftp(connection: ParamikoConnection) -> paramiko.SFTPClient:
    """An sftp session on the connection. Raises `TransportError("channel")`."""
    try:
        client = connection.wire.open_sftp_client()
    except (SSHException, EOFError, OSError) as error:
        raise TransportError("channel", f"no sftp on the node: {error}") from None
    if client is None:
        raise TransportError("channel", "no sftp on the node")
    return client
