"""A Connection that is this machine: runs the remote command line by `sh -c`, without ssh.

Same contract as the ssh backends, so payload tests need no server. `shell` stands for what a
login shell does first (greetings, a changed PATH).
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport.base import Limits, Progress


class LocalStream:
    def __init__(self, command: str, stdin: bytes, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr = b""
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_out, self._read_err, lambda: self._feed(stdin))
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, data: bytes) -> None:
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError:
            pass  # it ended before it had read everything; the reader sees that

    def _read_out(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.rstrip(b"\n"))
        self._lines.put(None)

    def _read_err(self) -> None:
        for line in self.process.stderr:
            self._stderr += line

    def write(self, data: bytes) -> None:
        self._threads[2].join(5)
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError as error:
            raise TransportError("command", str(error)) from None

    def read_line(self, timeout_s: float) -> bytes | None:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise EOFError
        return line

    def close_stdin(self) -> None:
        self._threads[2].join(5)
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stderr_tail(self) -> str:
        self._threads[1].join(1)
        return self._stderr.decode(errors="backslashreplace")

    def kill(self) -> None:
        self.process.terminate()

    def close(self) -> None:
        self.close_stdin()
        if self.wait(3.0) is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)


class LocalConnection:
    def __init__(self, env: dict[str, str] | None = None, shell: str = "") -> None:
        self.env = dict(os.environ, **(env or {}))
        self.shell = shell
        self.commands: list[str] = []

    def stream(self, command: str, stdin: bytes) -> LocalStream:
        self.commands.append(command)
        return LocalStream(self.shell + command, stdin, self.env)

    def close(self) -> None:
        pass


class LocalTransport:
    """A cluster on this machine: node name -> its Connection, or the error it answers with."""

    def __init__(self, nodes: dict[str, LocalConnection | TransportError]) -> None:
        self.nodes = nodes

    def connect(self, node: Node, limits: Limits, progress: Progress) -> LocalConnection:
        progress.enter("tcp")
        answer = self.nodes[node.name]
        if isinstance(answer, TransportError):
            raise answer
        progress.enter("command")
        return answer


def tools_only(directory: Path, **scripts: str) -> dict[str, str]:
    """An environment whose PATH holds python3 and the given shell scripts, nothing else."""
    import shutil
    import sys

    directory.mkdir(parents=True, exist_ok=True)
    python = directory / "python3"
    if not python.exists():
        python.symlink_to(Path(sys.executable).resolve())
    shell = shutil.which("sh")
    for name, body in scripts.items():
        path = directory / name.replace("_", "-")
        path.write_text(f"#!{shell}\n{body}\n")
        path.chmod(0o755)
    return {"PATH": str(directory)}
