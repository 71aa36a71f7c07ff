"""N nodes out of namespaces, on a bridge of their own in 10.231.0.0/16."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.transport.loopback.nodes import make_key
from tests.lab.bridge import LabError, ip, take_subnet
from tests.lab.init import wait_until_up
from tests.lab.node import LabNode

REPO = Path(__file__).resolve().parents[2]


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot make lab nodes; None when it can."""
    if os.environ.get("CLUSTERCTL_TESTS_WITHOUT_LAB"):
        return "turned off by $CLUSTERCTL_TESTS_WITHOUT_LAB"
    if os.geteuid() != 0:
        return "needs root"
    tools = [tool for tool in ("ip", "unshare", "nsenter") if not shutil.which(tool)]
    if not Path("/usr/sbin/sshd").exists():
        tools.append("sshd")
    if tools:
        return f"{', '.join(tools)} not installed (tests/lab/install.sh)"
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "sh", "-c",
         "mount -t tmpfs lab /tmp && ip link add lab0 type veth peer name lab1"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    return f"no namespaces here: {attempt.stderr.strip()[:120]}" if attempt.returncode else None


class Lab:
    """A context manager; inside it the nodes answer and `hostfile` names them."""

    def __init__(
        self,
        count: int,
        directory: Path,
        *,
        shared: Sequence[Path] = (),
        max_startups: int | str = 200,
    ) -> None:
        self.directory = directory.absolute()
        # What all nodes and the host see alike: the code, its Python, this lab's files, and `shared`.
        folders = [self.directory, REPO, Path(sys.prefix), Path(sys.base_prefix), *shared]
        self.shared = [str(folder.absolute()) for folder in folders]
        self.max_startups = max_startups
        self.hostfile = self.directory / "nodes.txt"
        self.known_hosts = self.directory / "known_hosts"
        self.identity = self.directory / "identity"
        self.known: dict[str, str] = {}
        self.authorized = ""
        self.subnet = take_subnet()
        self._is_stopped = False
        self.names = [f"node-{index + 1}" for index in range(count)]
        self.nodes = [LabNode(self, index, name) for index, name in enumerate(self.names)]

    @property
    def bridge(self) -> str:
        return f"cclab{self.subnet}"

    def hosts_text(self) -> str:
        lines = [f"{node.address} {node.name}" for node in self.nodes]
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines]) + "\n"

    def __enter__(self) -> Lab:
        atexit.register(self.stop)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        public = make_key(self.identity)
        self.authorized = f"ssh-ed25519 {public} lab\n"
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.pid = int(str(node.answer()["pid"]))
        cables = []
        for node in self.nodes:
            cables += [
                f"link add {node.link} type veth peer name eth0 address {node.mac} netns {node.pid}",
                f"link set {node.link} master {self.bridge} up",
                # Known for good: without it a node that is gone would be "no route to host" after
                # three seconds of ARP instead of silence.
                f"neigh replace {node.address} lladdr {node.mac} dev {self.bridge} nud permanent",
            ]
        ip(*cables)
        for node in self.nodes:
            node.tell("connected")
        for node in self.nodes:
            node.answer()
        for link in [*(node.link for node in self.nodes), self.bridge]:
            wait_until_up(link)
        self.known_hosts.write_text(
            "".join(f"{address} ssh-ed25519 {key}\n" for address, key in self.known.items())
        )
        self.hostfile.write_text(
            "".join(
                f"{node.name} host={node.address} user=root identity={self.identity} "
                f"known_hosts={self.known_hosts}\n"
                for node in self.nodes
            )
        )

    def stop(self) -> None:
        """End the nodes and remove the bridge. Once: its names may be another lab's by then."""
        if self._is_stopped:
            return
        self._is_stopped = True
        atexit.unregister(self.stop)
        for node in self.nodes:
            node.stop()
        # The kernel takes a namespace down when it finds time; its cable is not waited for.
        for link in [*(node.link for node in self.nodes), self.bridge]:
            with contextlib.suppress(LabError):  # gone already
                ip(f"link del {link}")
