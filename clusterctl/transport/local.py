"""This machine as a node without ssh: the same payloads, started by sh."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress

STDERR_TAIL_BYTES = 16 << 10
END_S = 5.0  # for a payload to end what it runs


class LocalTransport:
    """A `base.Transport` that starts commands here, whatever the node is called."""

    def connect(self, node: Node, limits: Limits, progress: Progress) -> LocalConnection:
        return LocalConnection()


class LocalConnection:
    """A `base.Connection`; closing it ends its commands."""

    def __init__(self) -> None:
        self._streams: list[LocalStream] = []

    def stream(self, command: str, stdin: bytes) -> LocalStream:
        stream = LocalStream(command)
        self._streams.append(stream)
        stream.write(stdin)
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class LocalStream:
    """A `base.Stream`. Two threads read its pipes, so that nothing it prints blocks it."""

    def __init__(self, command: str) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,  # the terminal's Ctrl-C is for this program alone
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._rest, self._stderr = b"", bytearray()
        self._has_ended = False
        self._call: Callable[[], None] = lambda: None
        for work in (self._read_out, self._read_err):
            threading.Thread(target=work, daemon=True).start()

    def _read_out(self) -> None:
        assert self._child.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # it was closed here
            for line in self._child.stdout:
                self._lines.put(line)
                self._call()
        self._lines.put(None)
        self._call()

    def _read_err(self) -> None:
        assert self._child.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._child.stderr.fileno(), 1 << 16):
                self._stderr += data
                del self._stderr[:-STDERR_TAIL_BYTES]

    def write(self, data: bytes) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(data)
            self._child.stdin.flush()
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
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stderr_tail(self) -> str:
        return bytes(self._stderr).decode(errors="backslashreplace")

    def kill(self) -> None:
        self._child.terminate()

    def close(self) -> None:
        """Its lease ends; what does not end with it is killed."""
        self.close_stdin()
        deadline = time.monotonic() + END_S
        if self.wait(max(0.0, deadline - time.monotonic())) is None:
            self._child.kill()
            self._child.wait()
