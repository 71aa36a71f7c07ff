"""A transport whose nodes are processes behind real pipes: as ssh, without its cryptography."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.remote import payload as ship
from clusterctl.transport.base import Limits, Progress
from tests.readable import on_readable

FLOOD = f"exec 3<&0; cat <&3 >/dev/null 3<&- & exec 3<&-; echo '{ship.MARKER}'; exec yes 'garbage garbage garbage garbage'"
ONE_LINE_FLOOD = f"exec 3<&0; cat <&3 >/dev/null 3<&- & exec 3<&-; echo '{ship.MARKER}'; exec tr '\\0' x </dev/zero"


class PipeStream:
    """Bytes of one command; see `transport.base.Stream`."""

    def __init__(self, command: str, stdin: bytes, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )
        assert self.process.stdout is not None
        self._descriptor = self.process.stdout.fileno()
        self._buffer = b""
        self.write(stdin)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except (OSError, ValueError) as error:
            raise TransportError("command", str(error)) from None

    def read_line(self, timeout_s: float) -> bytes | None:
        while b"\n" not in self._buffer:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN | select.POLLHUP)
            if not poller.poll(1000 * timeout_s):
                return None
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
            if len(self._buffer) > 1 << 20:
                raise TransportError("parse", "a line of over 1 MiB")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def read_some(self, limit: int) -> bytes:
        data, self._buffer = self._buffer, b""
        try:
            more = os.read(self._descriptor, limit - len(data))
        except BlockingIOError:
            return data
        if not data and not more:
            raise EOFError
        return data + more

    def on_readable(self, call: Callable[[], None]) -> None:
        on_readable(self._descriptor, call)

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None: ...

    def stderr_tail(self) -> str:
        return ""

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def close(self) -> None:
        """As sshd does: the end of the channel is the end of its processes' pipes."""
        self.close_stdin()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.wait(2.0) is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(5)


@dataclass
class PipeConnection:
    transport: Pipes
    node: Node
    streams: list[PipeStream] = field(default_factory=list)

    def stream(self, command: str, stdin: bytes) -> PipeStream:
        command = self.transport.instead.get(self.node.name, command)
        stream = PipeStream(command, stdin, dict(os.environ, **self.transport.env))
        self.streams.append(stream)
        self.transport.running[self.node.name] = stream
        return stream

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


@dataclass
class Pipes:
    """`instead` gives a node another command than the watcher; `refused` nodes cannot be connected to."""

    env: dict[str, str] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    running: dict[str, PipeStream] = field(default_factory=dict)
    dialled: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, node: Node, limits: Limits, progress: Progress) -> PipeConnection:
        self.dialled.append(node.name)
        progress.enter("tcp")
        if node.name in self.refused:
            raise TransportError("tcp", "connection refused")
        return PipeConnection(self, node)
