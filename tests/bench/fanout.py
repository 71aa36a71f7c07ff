"""`true` on 24 nodes: what it costs the head node, ours against clush, pdsh and GNU parallel.

    python -m tests.bench.fanout [--nodes 24] [--runs 5] [--json FILE]

One real sshd (OpenSSH, root needed) answers on 127.0.1.1, 127.0.1.2, …; it and its shells are not
counted. Client CPU is user + system time of the client and all it started, from wait4(2). Client
and sshd share the cores, so wall time says little; the ratios of CPU do. Every client checks host
keys and logs in with one ed25519 key. OpenSSH 9.0 to 9.9 prefers sntrup761x25519, which costs it
much; so each peer has a second row with curve25519, which is what one line of ssh_config gives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.transport.loopback.nodes import make_key
from tests.bench import tiny
from tests.lab.cluster import why_not
from tests.lab.node import passwd, shadow

PEERS = ("clush", "pdsh", "parallel")
FANOUT = 64
TIMEOUT_S = 120.0
C25519 = "curve25519-sha256"

SSHD_CONFIG = """
Port {port}
ListenAddress 0.0.0.0
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 20000
MaxSessions 2000
UseDNS no
PrintMotd no
LogLevel ERROR
"""

SSH_CONFIG = """
Host *
  Port {port}
  User root
  IdentityFile {folder}/identity
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
  ConnectTimeout 30
"""

# The same without a command's work around it: what the transport itself costs.
LIBRARY = """
import sys
from contextlib import closing
from pathlib import Path
from clusterctl.remote.fanout import Fanout
from clusterctl.hostfile import read_hostfile
from clusterctl.transport.base import Limits
from clusterctl.transport.paramiko_backend import ParamikoTransport
transport, limits = ParamikoTransport(), Limits(handshake_s=30)
def work(node, progress):
    with closing(transport.connect(node, limits, progress)) as connection:
        return connection.stream("true", b"").wait(30)
results = list(Fanout(read_hostfile(Path(sys.argv[1])), work, deadline_s=100))
sys.exit(sum(result.value != 0 for result in results))
"""


@dataclass(frozen=True, eq=False)
class Client:
    """One way to do it. `failures` reads how many nodes failed from its exit status and output."""

    name: str
    kex: str
    argv: Sequence[str]
    environment: dict[str, str]
    failures: Callable[[int, str], int]


@dataclass(frozen=True, eq=False)
class Run:
    cpu_s: float
    wall_s: float
    failed: int


@contextlib.contextmanager
def sshd(folder: Path, nodes: int) -> Iterator[int]:
    """A private sshd on a free port; writes the files all clients use. Gives the port."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port = probe.getsockname()[1]
    host_key, user_key = make_key(folder / "host_key"), make_key(folder / "identity")
    addresses = [f"127.0.{1 + i // 250}.{1 + i % 250}" for i in range(nodes)]
    files = {
        "authorized_keys": f"ssh-ed25519 {user_key} bench\n",
        "known_hosts": "".join(f"[{a}]:{port} ssh-ed25519 {host_key}\n" for a in addresses),
        "ssh_config": SSH_CONFIG.format(port=port, folder=folder),
        "sshd_config": SSHD_CONFIG.format(port=port, folder=folder),
        "names": "".join(f"{a}\n" for a in addresses),
        "nodes.txt": "".join(
            f"{a} port={port} user=root identity={folder}/identity known_hosts={folder}/known_hosts\n"
            for a in addresses
        ),
        # An empty home: sshd-started bash reads ~/.bashrc, and a heavy one would be measured too.
        "passwd": passwd(),
        "shadow": shadow(),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600 if name != "passwd" else 0o644)
    script = (
        f"mount --bind {folder}/passwd /etc/passwd && mount --bind {folder}/shadow /etc/shadow && "
        f"mount -t tmpfs run /run && mkdir /run/sshd && mkdir -p /tmp/home && "
        f"exec /usr/sbin/sshd -D -f {folder}/sshd_config -E {folder}/sshd.log"
    )
    server = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", script],
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 10
        while socket.socket().connect_ex(("127.0.1.1", port)) != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                log = folder / "sshd.log"
                raise RuntimeError(f"sshd: {log.read_text() if log.exists() else 'no start'}")
            time.sleep(0.02)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def clients(folder: Path) -> tuple[list[Client], list[str]]:
    """All that are installed here, and the names of those that are not."""
    found = [
        Client(
            "clusterctl run", "best both have",
            [sys.executable, "-m", "clusterctl", "run", "true", str(folder / "nodes.txt"),
             "-f", str(FANOUT), "--json"],
            {}, _ours,
        ),
        Client(
            "clusterctl library", "best both have",
            [sys.executable, "-c", LIBRARY, str(folder / "nodes.txt")], {}, lambda rc, _: rc,
        ),
    ]  # fmt: skip
    absent = []
    for kex in ("default", C25519):
        options = ["-F", str(folder / "ssh_config")]
        options += [] if kex == "default" else ["-o", f"KexAlgorithms={kex}"]
        peers = {
            "clush": (
                ["clush", "-S", "-f", str(FANOUT), "-o", " ".join(options), "--hostfile",
                 str(folder / "names"), "true"],
                {}, lambda rc, out: len(_distinct(out)) or rc,
            ),
            "pdsh": (
                ["pdsh", "-S", "-R", "ssh", "-f", str(FANOUT), "-w", f"^{folder / 'names'}", "true"],
                {"PDSH_SSH_ARGS": " ".join([*options, "%h"])}, lambda rc, out: len(_distinct(out)) or rc,
            ),
            "parallel": (
                ["parallel", "--will-cite", "-j", str(FANOUT), "-a", str(folder / "names"), "ssh",
                 *options, "{}", "true"],
                {}, lambda rc, _: rc,  # its exit status is the number of failed jobs
            ),
        }  # fmt: skip
        for name, (argv, environment, failures) in peers.items():
            program = shutil.which(name, path=_path())
            if program:
                found.append(Client(name, kex, [program, *argv[1:]], environment, failures))
            elif kex == "default":
                absent.append(name)
    return found, absent


def _ours(_: int, out: str) -> int:
    return sum(node.get("rc") != 0 for node in json.loads(out)["nodes"])


def _distinct(out: str) -> set[str]:
    """Nodes that a peer complains about: `name: message`."""
    return {line.split(":")[0] for line in out.splitlines() if ": " in line}


def _path() -> str:
    """Without the virtual environment: the peer is the distribution's clush, not a library's."""
    own = str(Path(sys.prefix) / "bin")
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)


def measure(client: Client) -> Run:
    """Run it once. Raises `TimeoutError` when it takes over two minutes."""
    with tempfile.TemporaryFile() as out:
        started = time.monotonic()
        process = subprocess.Popen(
            client.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            if client.name != "clusterctl run" else subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PATH": _path(), "OMP_NUM_THREADS": "1", **client.environment},
        )  # fmt: skip
        alarm = time.monotonic() + TIMEOUT_S
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > alarm:
                os.killpg(process.pid, signal.SIGKILL)
                os.wait4(process.pid, 0)
                raise TimeoutError(f"{client.name} runs for over {TIMEOUT_S:g} s")
            time.sleep(0.002)
        wall_s = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
    failed = client.failures(process.returncode, text)
    return Run(usage.ru_utime + usage.ru_stime, wall_s, failed)


def table(rows: list[tuple[Client, list[Run]]], nodes: int) -> list[str]:
    """Lines for people; ratios are against `clusterctl run`, above 1 means dearer than ours."""
    ours_ms = statistics.median(run.cpu_s for run in rows[0][1]) * 1000 / nodes
    head = f"{'client':20} {'kex':18} {'CPU ms/node':>12} {'(min)':>7} {'wall s':>7} {'failed':>7} {'ratio':>6}"
    lines = [head]
    for client, runs in rows:
        cpu_ms = [run.cpu_s * 1000 / nodes for run in runs]
        median_ms = statistics.median(cpu_ms)
        wall_s = statistics.median(run.wall_s for run in runs)
        lines.append(
            f"{client.name:20} {client.kex:18} {median_ms:12.1f} {min(cpu_ms):7.1f} {wall_s:7.2f} "
            f"{sum(run.failed for run in runs):7d} {median_ms / ours_ms:6.1f}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = tiny.parse(parser, nodes=2, runs=1)
    reason = why_not()
    if reason:
        print(f"not measured: clusterctl run, clusterctl library, {', '.join(PEERS)}: {reason}")
        return 3
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as name:
        folder = Path(name)
        with sshd(folder, options.nodes):
            found, absent = clients(folder)
            runs: dict[Client, list[Run]] = {}
            for number in range(options.runs + 1):  # the first round warms caches, not counted
                for client in found:
                    run = measure(client)
                    if number:
                        runs.setdefault(client, []).append(run)
    rows = list(runs.items())
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    print(
        f"{options.nodes} nodes, `true`, cold, fan-out {FANOUT}, median of {options.runs}; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, "
        f"{version.split(',')[0]}"
    )
    print("\n".join(table(rows, options.nodes)))
    if absent:
        print(f"not measured: {', '.join(absent)}: not installed")
    if options.json:
        record = [
            {"client": c.name, "kex": c.kex, "runs": [vars(run) for run in rs]} for c, rs in rows
        ]
        options.json.write_text(json.dumps({"schema": 1, "nodes": options.nodes, "rows": record}))
    if any(run.failed for _, one in rows for run in one):
        return 1
    return 3 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
