"""What preflight costs: CPU of a node's look, and wall time of many nodes. `python -m tests.bench.preflight`.

The nodes are loopback addresses of one private sshd (root needed), so their CPU is this machine's.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clusterctl.remote import payload as ship
from tests.bench import tiny
from tests.bench.fanout import sshd
from tests.captures import fake_nvidia_smi as fake
from tests.clusterctl.payload.local import LocalConnection
from tests.lab.cluster import why_not

LOOKS: dict[str, dict[str, Any]] = {
    "gpus alone": {},
    "everything": {"everything": True, "names": ["@"], "nvml": True},
    "everything and an interpreter": {
        "everything": True, "names": ["@"], "nvml": True, "python": sys.executable, "paths": ["/tmp"],
    },
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=192)
    parser.add_argument("--times", type=int, default=5)
    options = tiny.parse(parser, nodes=2, times=1)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        env = fake.install(folder / "bin", fake.h100(8))
        for words, args in LOOKS.items():
            costs = sorted(_look(env, args) for _ in range(options.times))
            print(f"payload, {words}: {costs[0]:.3f} to {costs[-1]:.3f} CPU s")
        reason = why_not()
        if reason:
            print(f"not measured: {options.nodes} nodes: {reason}")
            return 3
        with sshd(folder, options.nodes):
            wall_s, head_s, said = _preflight(folder)
            server_s = _server_s(folder)
        print(
            f"{options.nodes} nodes: {wall_s:.1f} s wall; CPU per node: head "
            f"{head_s / options.nodes:.3f} s, its sshd and payload {server_s / options.nodes:.3f} s; {said}"
        )
    return 0


def _look(env: dict[str, str], args: dict[str, Any]) -> float:
    before_s = _children_s()
    ship.probe(LocalConnection(env), "census", args, 60, nvml=bool(args))
    return _children_s() - before_s


def _children_s() -> float:
    """CPU of all that was started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _server_s(folder: Path) -> float:
    """CPU of the one sshd and of all sessions and payloads that have ended under it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
            if b"[listener]" in command and f"{folder}/sshd_config".encode() in command:
                ticks = path.with_name("stat").read_text().rpartition(")")[2].split()[11:15]
                return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue
    raise RuntimeError("the sshd is gone")


def _preflight(folder: Path) -> tuple[float, float, str]:
    """(wall, head's CPU, what it said)."""
    command = [
        sys.executable, "-m", "clusterctl", "preflight", "--device", "cpu", "--min-free", "0",
        "--outputs", str(folder), "--workdir", str(folder), "--command-timeout", "120", str(folder / "nodes.txt"),
    ]  # fmt: skip
    before_s, begun = _children_s(), time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )  # fmt: skip
    wall_s = time.monotonic() - begun
    head_s = _children_s() - before_s  # sshd and what it started are not waited for yet
    cost = re.search(r"[\d.]+ CPU s per node", done.stderr)
    last = done.stdout.splitlines()[-1] if done.stdout else done.stderr[-300:]
    return wall_s, head_s, f"{cost[0] if cost else 'no cost said'}; {last}"


if __name__ == "__main__":
    sys.exit(main())
