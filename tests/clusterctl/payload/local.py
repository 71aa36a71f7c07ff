"""A cluster that is this machine, for tests of payloads: no server, no ssh.

`shell` stands for what a login shell does first (greetings, a changed PATH).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport import local
from clusterctl.transport.base import Limits, Progress


class LocalConnection(local.LocalConnection):
    """Stays open for every connect of a test; `commands` are those that were run."""

    def __init__(self, env: dict[str, str] | None = None, shell: str = "") -> None:
        super().__init__({**os.environ, **(env or {})})
        self.shell = shell
        self.commands: list[str] = []

    def stream(self, command: str, stdin: bytes) -> local.LocalStream:
        self.commands.append(command)
        return super().stream(self.shell + command, stdin)

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
