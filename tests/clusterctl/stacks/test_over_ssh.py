"""kill and dump-stacks over real sshds on nodes made of namespaces."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.hostfile import read_hostfile
from clusterctl.jobs.processes import Pick
from clusterctl.remote import payload as ship
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.as_user import closed_above
from tests.clusterctl.jobs.trees import wait_until
from tests.lab import Lab, LabNode

pytestmark = pytest.mark.lab
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def nodes(module_lab) -> Iterator[Lab]:
    return module_lab(3)


def clusterctl(lab: Lab, *words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", words[0], str(lab.hostfile), *words[1:]],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def interpreter(user: str) -> str:
    """This Python, or one that another user can run: this one may lie in a home closed to others."""
    if not user or closed_above(Path(sys.base_prefix)) is None:
        return sys.executable
    found = shutil.which("python3", path="/usr/bin:/bin")
    if found is None:
        pytest.skip("no Python that another user can run")
    return found


def plant(
    node: LabNode, rank: int, world: int, run_id: str, workers: int, *more: str, user: str = ""
) -> None:
    """Start a crew on a node; it stays when this returns."""
    variables = (
        f"CLUSTERCTL_RUN={run_id} CLUSTERCTL_NODE={node.name} RANK={rank} WORLD_SIZE={world}"
    )
    as_user = f"setpriv --reuid={user} --regid={user} --clear-groups " if user else ""
    log = f"/tmp/job-{run_id}-{rank}"
    script = (
        f"mkdir {log}.d && cp {shlex.quote(str(HERE / 'crew.py'))} {log}.d && chmod -R a+rX {log}.d; "  # this checkout may be closed to other users
        f"cd /; {variables} setsid {as_user}{shlex.quote(interpreter(user))} {log}.d/crew.py {workers} {' '.join(more)} "
        f"</dev/null >{log} 2>&1 & for i in $(seq 3000); do grep -q up {log} && exit 0; sleep 0.01; done; cat {log}; exit 1"
    )
    done = node.exec(["sh", "-c", script], timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr


def crew_of(node: LabNode, run_id: str) -> list[int]:
    found = []
    for pid in node.processes():
        try:
            if f"CLUSTERCTL_RUN={run_id}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):  # fmt: skip
                found.append(pid)
        except OSError:
            continue
    return found


def counts(lab: Lab, run_id: str) -> list[int]:
    return [len(crew_of(node, run_id)) for node in lab.nodes]


@pytest.mark.long
def test_culprit_is_named_then_only_that_run_dies(nodes: Lab) -> None:
    for rank, node in enumerate(nodes.nodes):
        plant(node, rank, 3, "guilty", 2, *(["stuck", "1"] if rank == 1 else []))
        plant(node, rank, 3, "other", 1, user="64200")
    words = ("--run", "guilty", "--interval", "0.5", "--dump-timeout", "20", "--sites", str(HERE / "crew.toml"))  # fmt: skip
    done = clusterctl(nodes, "dump-stacks", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1 waits for data; its loader 1 (node-2) has not moved" in done.stdout
    assert "_read_from_stream crew.py" in done.stdout
    assert counts(nodes, "guilty") == [3, 3, 3]

    # Without a name it is not guessed: another user's run is there, too.
    done = clusterctl(nodes, "kill", "--yes", "--dry-run")
    assert "left alone: 6 processes of worker" in done.stderr
    done = clusterctl(nodes, "kill", "--run", "guilty", "--yes", "--grace", "3")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "gone: 9 processes on 3 nodes" in done.stdout
    assert counts(nodes, "guilty") == [0, 0, 0]
    assert counts(nodes, "other") == [2, 2, 2]
    done = clusterctl(nodes, "kill", "--user", "worker", "--yes", "--grace", "3")
    assert (done.returncode, counts(nodes, "other")) == (0, [0, 0, 0])


@pytest.mark.slow
def test_node_without_sshd_is_not_confirmed_and_holds_up_nobody(nodes: Lab) -> None:
    for rank, node in enumerate(nodes.nodes):
        plant(node, rank, 3, "third", 1)
    nodes.nodes[2].kill_sshd()
    try:
        begun = time.monotonic()
        done = clusterctl(nodes, "kill", "--run", "third", "--yes", "--grace", "3", "--json")
        assert done.returncode == 3, done.stdout + done.stderr
        assert time.monotonic() - begun < 60
        document = json.loads(done.stdout)
        assert [node["confirmed"] for node in document["nodes"]] == [True, True, False]
        assert counts(nodes, "third") == [0, 0, 2]
        done = clusterctl(nodes, "dump-stacks", "--run", "third")
        assert done.returncode == 3
        assert "node-3" in done.stdout
    finally:
        nodes.nodes[2].start_sshd()
        done = clusterctl(nodes, "kill", "--run", "third", "--yes", "--grace", "3")
    assert (done.returncode, counts(nodes, "third")) == (0, [0, 0, 0])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_nodes_of_seventeen_processes(lab) -> None:
    """The issue's numbers: two samples 2 s apart under 15 s; all gone under 5 s plus grace."""
    big = lab(8)
    for rank, node in enumerate(big.nodes):
        plant(node, rank, 8, "big", 16, *(["stuck", "7"] if rank == 5 else []))
    begun = time.monotonic()
    done = clusterctl(big, "dump-stacks", "--run", "big", "--sites", str(HERE / "crew.toml"))
    dumped_s = time.monotonic() - begun
    assert done.returncode == 1, done.stdout + done.stderr
    assert "its loader 7 (node-6) has not moved" in done.stdout
    begun = time.monotonic()
    done = clusterctl(big, "kill", "--run", "big", "--yes", "--grace", "10")
    killed_s = time.monotonic() - begun
    assert "gone: 136 processes on 8 nodes" in done.stdout, done.stdout + done.stderr
    print(f"dump-stacks {dumped_s:.1f} s, kill {killed_s:.1f} s")
    wait_until(lambda: counts(big, "big") == [0] * 8)
    assert dumped_s < 15
    assert killed_s < 15


@pytest.mark.long
def test_a_reused_process_id_is_not_hit(nodes: Lab) -> None:
    """The kernel is made to give the id of a process that was shown to another one before the kill."""
    node = nodes.nodes[0]
    script = (
        "cd /proc/sys/kernel && sleep 300 >/dev/null & old=$!; s=$(sed 's/.*) //' /proc/$old/stat | cut -d' ' -f20); "
        "kill -9 $old; wait $old 2>/dev/null; sleep 0.05; "
        "for i in $(seq 50); do echo $((old-1)) >/proc/sys/kernel/ns_last_pid; sleep 300 >/dev/null & new=$!; "
        "[ $new = $old ] && echo $old $s && exit 0; kill $new; done; exit 1"
    )
    done = node.exec(["setsid", "bash", "-c", f"exec 2>/dev/null; {script}"], timeout_s=30)
    if done.returncode != 0:
        pytest.skip("this kernel gives no id twice on request")
    pid, start = map(int, done.stdout.split())
    made = read_hostfile(nodes.hostfile)[0]
    args = {
        "op": "kill", "pick": Pick(("nobody",)).to_args(made), "targets": [[pid, start]],
        "signal": "SIGTERM", "grace_s": 0.2,
    }  # fmt: skip
    connection = ParamikoTransport().connect(made, Limits(), Progress())
    try:
        answer = ship.probe(connection, "kill", args, 30)
    finally:
        connection.close()
    assert (answer["asked"], answer["missed"], answer["left"]) == (0, 1, [])
    assert node.exec(["kill", "-9", str(pid)]).returncode == 0  # it was alive
