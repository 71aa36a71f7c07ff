"""This machine as a node without ssh: the same payloads, started by sh."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress

STDERR_TAIL_BYTES = 16 << 10
FEED_S = 5.0  # for a command to read what it is given first
STDERR_S = 1.0  # for the last words of a command that has ended
END_S = 5.0  # for a payload to end what it runs


class LocalTransport:
    """A `base.Transport` that starts commands here, whatever the node is called."""

    def connect(self, node: Node, limits: Limits, progress: Progress) -> LocalConnection:
        return LocalConnection()


class LocalConnection:
    """A `base.Connection`; closing it ends its commands. They have this environment, by default
    that of this process."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = env
        self._streams: list[LocalStream] = []

    def stream(self, command: str, stdin: bytes) -> LocalStream:
        stream = LocalStream(command, stdin, self.env)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class LocalStream:
    """A `base.Stream`. Threads read and fill its pipes, so that neither side blocks the other."""

    def __init__(self, command: str, stdin: bytes, env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=env,
            start_new_session=True,  # the terminal's Ctrl-C is for this program alone
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._rest, self._stderr = b"", bytearray()
        self._has_ended = False
        self._call: Callable[[], None] = lambda: None
        self._feeder = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        self._errors = threading.Thread(target=self._read_err, daemon=True)
        for thread in (self._feeder, self._errors):
            thread.start()
        threading.Thread(target=self._read_out, daemon=True).start()

    def _feed(self, data: bytes) -> None:
        with contextlib.suppress(TransportError):  # the reader sees that it has ended
            self._write(data)

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # it was closed here
            for line in self.process.stdout:
                self._lines.put(line)
                self._call()
        self._lines.put(None)
        self._call()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self.process.stderr.fileno(), 1 << 16):
                self._stderr += data
                del self._stderr[:-STDERR_TAIL_BYTES]

    def write(self, data: bytes) -> None:
        if not self._is_fed():
            raise TransportError("command", "the command does not read its input")
        self._write(data)

    def _is_fed(self) -> bool:
        self._feeder.join(FEED_S)
        return not self._feeder.is_alive()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise TransportError("command", "the command has ended") from None

    def read_line(self, timeout_s: float) -> bytes | None:
        line = self._next(timeout_s)
        return None if line is None else line.removesuffix(b"\n")

    def _next(self, timeout_s: float) -> bytes | None:
        if self._has_ended:
            raise EOFError
        try:
            line = self._lines.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if line is None:
            self._has_ended = True
            raise EOFError
        return line

    def read_some(self, limit: int) -> bytes:
        while len(self._rest) < limit:
            try:
                line = self._next(0.0)
            except EOFError:
                if not self._rest:
                    raise
                break
            if line is None:
                break
            self._rest += line
        data, self._rest = self._rest[:limit], self._rest[limit:]
        return data

    def on_readable(self, call: Callable[[], None]) -> None:
        self._call = call
        call()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        if self._is_fed():  # else it waits in a write, and `close` kills the command
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stderr_tail(self) -> str:
        if self._has_ended or self.process.poll() is not None:
            self._errors.join(STDERR_S)
        return bytes(self._stderr).decode(errors="backslashreplace")

    def kill(self) -> None:
        self.process.terminate()

    def close(self) -> None:
        """Its lease ends; what does not end with it is killed."""
        self.close_stdin()
        deadline = time.monotonic() + END_S
        if self.wait(max(0.0, deadline - time.monotonic())) is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
