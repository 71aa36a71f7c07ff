"""A hostfile whose nodes are this machine without ssh, for tests of what commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.settings import Settings
from tests.clusterctl.payload.local import LocalConnection, LocalTransport


class LocalCluster:
    """`nodes` may be changed by the test: name -> LocalConnection or the error it answers with."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.hostfile = directory / "nodes.txt"
        self.hostfile.write_text("".join(f"{name}\n" for name in names))
        self.nodes: dict[str, LocalConnection | TransportError] = {
            name: LocalConnection({"NODE": name}) for name in names
        }

    def kill(self, name: str) -> None:
        self.nodes[name] = TransportError("banner", "the server sent nothing", hint="look at sshd")


def patch(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> LocalCluster:
    """Commands run in this test reach `cluster`."""
    monkeypatch.setattr(Settings, "transport", lambda self: LocalTransport(cluster.nodes))
    return cluster
