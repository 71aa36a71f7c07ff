"""Nodes without machines: real ssh servers on 127.0.0.1, as this user, with temporary keys.

`clusterctl demo` and the tests run on them. Each node is one process; they share this machine's
file system, processes and GPUs.
"""

from __future__ import annotations

import getpass
import json
import os
import select
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.errors import ClusterctlError
from trainer.runlog.own_modules import environment, module_command

START_TIMEOUT_S = 20.0
# In the environment of every command on these nodes; its value names the cluster.
MARK = "CLUSTERCTL_LOOPBACK"


class LoopbackCluster:
    """A context manager; inside it `hostfile` and `known_hosts` are ready for any command."""

    def __init__(
        self, names: Sequence[str], directory: Path, env: Mapping[str, str] | None = None
    ) -> None:
        if not names or len(set(names)) != len(names):
            raise ValueError("a loopback cluster needs names, each once")
        self.names = list(names)
        self.directory = Path(directory).absolute()
        self.hostfile = self.directory / "nodes.txt"
        self.known_hosts = self.directory / "known_hosts"
        self.identity = self.directory / "identity"
        self.ports: list[int] = []
        self._token = uuid.uuid4().hex
        self._env = {**(env or {}), MARK: self._token}
        self._processes: dict[str, Any] = {}  # Popen with stdin and stdout
        self._stop_lock = threading.Lock()

    def __enter__(self) -> LoopbackCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ClusterctlError(f"{self.directory} is not your own folder: keys would be in it")
        self.directory.chmod(0o700)
        authorized = make_key(self.identity)
        host_keys = []
        for name in self.names:
            host_keys.append(make_key(self._file(name, "hostkey")))
            config = {
                "host_key": str(self._file(name, "hostkey")),
                "authorized": authorized,
                "env": self._env,
                # The kernel sends the signal when the *thread* that forked ends, so only the main
                # thread may rely on it. The lease on stdin covers the rest.
                "die_with_parent": threading.current_thread() is threading.main_thread(),
            }
            self._file(name, "json").write_text(json.dumps(config), encoding="utf-8")
            self._processes[name] = self._spawn(name)
        deadline = time.monotonic() + START_TIMEOUT_S
        self.ports = [self._wait_until_ready(name, deadline) for name in self._processes]
        me = getpass.getuser()
        files = [f"identity={self.identity}", f"known_hosts={self.known_hosts}"]
        nodes = known = ""
        for name, port, key in zip(self.names, self.ports, host_keys, strict=True):
            address = [name, "host=127.0.0.1", f"port={port}", f"user={me}"]
            nodes += shlex.join([*address, *files]) + "\n"
            known += f"[127.0.0.1]:{port} ssh-ed25519 {key}\n"
        self.known_hosts.write_text(known, encoding="utf-8")
        self.hostfile.write_text(nodes, encoding="utf-8")

    def _file(self, name: str, suffix: str) -> Path:
        return self.directory / f"{name.replace('/', '_')}.{suffix}"

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        with self._file(name, "log").open("wb") as log:
            return subprocess.Popen(
                module_command(__name__, self._file(name, "json")),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                start_new_session=True,  # Ctrl-C is for us; we stop the nodes in order
            )

    def _wait_until_ready(self, name: str, deadline: float) -> int:
        output = self._processes[name].stdout
        if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise ClusterctlError(
                f"loopback node {name} does not start in {units.duration(START_TIMEOUT_S)}"
            )
        if line := output.readline():
            return int(json.loads(line)["port"])
        log = self._file(name, "log").read_text(errors="replace").strip()
        reason = log[-500:] or "no reason given"
        raise ClusterctlError(f"loopback node {name} does not start: {reason}")

    def stop(self, timeout_s: float = 5) -> None:
        """End the nodes and what runs on them, remove the keys. Raises `ClusterctlError`."""
        with self._stop_lock:
            processes, self._processes = list(self._processes.values()), {}
            for process in processes:
                process.stdin.close()  # the lease
            deadline = time.monotonic() + timeout_s
            for process in processes:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                process.stdout.close()
            left = self._sweep() if processes else []
            files = [self._file(n, s) for n in self.names for s in ("hostkey", "json", "log")]
            for path in (self.identity, self.known_hosts, self.hostfile, *files):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # it holds other files, or is gone already
                self.directory.rmdir()
            left += [f"port {port}" for port in self.ports if _answers(port)]
            self.ports = []
            if left:
                raise ClusterctlError(f"loopback nodes left behind: {', '.join(left)}")

    def _sweep(self) -> list[str]:
        """Kill what still has our mark; only a killed node leaves any."""
        deadline = time.monotonic() + 2.0
        while found := _marked(self._token):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return [f"process {pid}" for pid in found]
            time.sleep(0.02)
        return []


def make_key(path: Path) -> str:
    """Write a new ed25519 private key (0600); returns the public half in base64."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, openssh = Ed25519PrivateKey.generate(), serialization.PrivateFormat.OpenSSH
    data = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public.split()[1].decode()


def _marked(token: str) -> list[int]:
    """Processes of this cluster that still run; those of other users cannot be ours."""
    import psutil

    every = psutil.process_iter(["environ"])
    return [one.pid for one in every if (one.info["environ"] or {}).get(MARK) == token]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":  # one node: its argument is the config
    from clusterctl.transport.loopback.ssh_server import serve

    serve(Path(sys.argv[1]))
