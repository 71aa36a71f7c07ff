"""run, gpus and preflight against real sshds on nodes made of namespaces."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.captures import fake_nvidia_smi as fake
from tests.lab import Lab, LabNode


@pytest.fixture(scope="module")
def nodes(module_lab) -> Iterator[Lab]:
    """node-1 and node-2 have eight GPUs, node-3 lost one, nvidia-smi of node-4 hangs."""
    made = module_lab(4)
    for node, gpus, hang in zip(made.nodes, (8, 8, 7, 8), (False, False, False, True), strict=True):
        folder = made.directory / f"driver-{node.name}"
        fake.install(folder, fake.h100(gpus), hang=hang)
        node.bind(folder / "nvidia-smi", "nvidia-smi")
    return made


def clusterctl(lab: Lab, *args: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *args, str(lab.hostfile)],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def wait_until(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running(node: LabNode, word: str) -> list[int]:
    """Processes of a node whose command line has `word` as an argument."""
    found = []
    for pid in node.processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(pid)
    return found


@pytest.mark.long
def test_run_folds_equal_answers_of_real_nodes(nodes: Lab) -> None:
    done = clusterctl(nodes, "run", "echo hello; hostname | grep -q node-3 && echo odd; true")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "== node-[1-2,4] (3 nodes)", "hello", "== node-3", "hello", "odd",
    ]  # fmt: skip


@pytest.mark.long
def test_gpus_of_real_nodes(nodes: Lab) -> None:
    done = clusterctl(nodes, "gpus", "--command-timeout", "3")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["node-[1-2]", "node-3", "node-4"]
    assert "7!" in lines[2]
    assert "nvidia-smi: no end in 1 s, killed" in lines[3]
    assert done.returncode == 1
    assert not running(nodes.nodes[3], "600"), "the hung tool was left behind"


@pytest.mark.long
def test_dead_node_is_told_apart_and_nobody_waits_for_it(nodes: Lab) -> None:
    node = nodes.nodes[1]
    begun = time.monotonic()
    assert clusterctl(nodes, "run", "-x", "node-3", "hostname").returncode == 0
    healthy_s = time.monotonic() - begun  # on this machine at this load
    node.freeze()
    try:
        begun = time.monotonic()
        done = clusterctl(nodes, "run", "-x", "node-3", "--deadline", "4", "hostname")
        seconds = time.monotonic() - begun
    finally:
        node.thaw()
    assert done.returncode == 3
    assert done.stdout.splitlines() == ["== node-1", "node-1", "== node-4", "node-4"]
    assert "node-2  banner" in done.stderr
    assert seconds < 6 + 3 * healthy_s


@pytest.mark.long
def test_interrupt_leaves_nothing_running_on_the_nodes(nodes: Lab) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "run", "sleep 7331", str(nodes.hostfile)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert wait_until(lambda: all(running(node, "7331") for node in nodes.nodes), 20)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert wait_until(lambda: not any(running(node, "7331") for node in nodes.nodes))


@pytest.mark.long
def test_killed_head_leaves_nothing_running_on_the_nodes(nodes: Lab) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "run", "trap '' HUP TERM; sleep 7332; sleep 7332",
         str(nodes.hostfile)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert wait_until(lambda: all(running(node, "7332") for node in nodes.nodes), 20)
    process.kill()
    process.wait(10)
    assert wait_until(lambda: not any(running(node, "7332") for node in nodes.nodes))


@pytest.mark.long
def test_preflight_names_the_bad_nodes_and_writes_the_good_ones(nodes: Lab, tmp_path: Path) -> None:
    good = tmp_path / "good.txt"
    with socket.socket() as held:
        held.bind(("", 0))
        port = held.getsockname()[1]  # held here, free on the nodes: they have their own network
        done = clusterctl(
            nodes, "preflight", "--json", "--min-free", "0", "--master-port", str(port),
            "--command-timeout", "6", "--write-good", str(good), "--skip-check", "storage,software.cuda_driver",
        )  # fmt: skip
    report = json.loads(done.stdout)
    bad = {(one["id"], one["verdict"]): one["nodes"] for one in report["checks"]}
    assert bad[("gpu.count_majority", "FAIL")] == ["node-3"]
    assert bad[("gpu.driver", "UNKNOWN")] == ["node-4"]
    assert bad[("launch.port_free", "PASS")] == ["node-1"]
    # Namespaces are what containers are: one machine that shares its GPUs.
    assert bad[("host.same_machine", "WARN")] == ["node-1", "node-2", "node-3", "node-4"]
    assert report["good_nodes"] == ["node-1", "node-2"]
    assert (report["verdict"], done.returncode) == ("NO-GO", 1)
    assert [line.split()[0] for line in good.read_text().splitlines()] == ["node-1", "node-2"]
    assert (
        clusterctl(nodes, "run", "--hostfile", str(good), "true").returncode == 2
    )  # two hostfiles
