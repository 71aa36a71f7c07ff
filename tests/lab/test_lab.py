"""The lab itself: nodes that are apart where machines are apart, and gone when they should be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.hostfile import read_hostfile
from tests.lab.bridge import LabError, remove_orphans
from tests.lab.cluster import REPO
from tests.lab.node import states

pytestmark = pytest.mark.lab

SERVER = """
import socket
server = socket.create_server(("", 5000))
print(flush=True)
server.accept()[0].sendall(b"hello")
"""


def wait_for(condition, timeout_s: float = 8.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.mark.long
def test_four_nodes_stand_within_three_seconds_and_are_apart(lab) -> None:
    started = time.monotonic()
    nodes = lab(4)
    assert time.monotonic() - started < 3
    assert [node.name for node in read_hostfile(nodes.hostfile)] == nodes.names
    a, b = nodes.nodes[:2]
    assert a.exec(["hostname"]).stdout == "node-1\n"
    a.exec(["sh", "-c", "echo a > /tmp/mine; echo a > /dev/shm/mine; sleep 30 > /dev/null 2>&1 &"])
    assert not b.exec(["ls", "/tmp/mine", "/dev/shm/mine"]).stdout
    assert "sleep" in a.exec(["ps", "ax"]).stdout
    assert "sleep" not in b.exec(["ps", "ax"]).stdout
    assert a.exec(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    assert a.address in a.exec(["ip", "-4", "addr", "show", "eth0"]).stdout
    # What they share: the code, its Python, and the lab's own folder.
    assert a.exec(["ls", str(REPO / "setup.cfg")]).returncode == 0
    assert a.exec([sys.executable, "-c", "import clusterctl"]).returncode == 0
    (nodes.directory / "shared").write_text("seen\n")
    assert a.exec(["cat", str(nodes.directory / "shared")]).stdout == "seen\n"


@pytest.mark.long
def test_nodes_reach_each_other_by_name(lab) -> None:
    nodes = lab(2)
    assert (
        nodes.nodes[0].exec(["getent", "hosts", "node-2"]).stdout.split()[0]
        == nodes.nodes[1].address
    )
    with subprocess.Popen(
        ["nsenter", "-t", str(nodes.nodes[1].pid), "-n", sys.executable, "-c",
         SERVER],
        stdout=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        server.stdout.readline()
        program = "import socket; print(socket.create_connection(('node-2', 5000), 5).recv(9))"
        assert nodes.nodes[0].exec([sys.executable, "-c", program]).stdout == "b'hello'\n"


@pytest.mark.long
def test_fake_tool_is_first_on_the_path_of_its_node_alone(lab, tmp_path: Path) -> None:
    nodes = lab(2)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho fake $1\n")
    tool.chmod(0o755)
    (nodes.directory / "tool").write_bytes(tool.read_bytes())
    (nodes.directory / "tool").chmod(0o755)
    nodes.nodes[0].bind(nodes.directory / "tool", "nvidia-smi")
    assert nodes.nodes[0].exec(["nvidia-smi", "x"]).stdout == "fake x\n"
    assert nodes.nodes[1].exec(["sh", "-c", "nvidia-smi x"]).returncode == 127
    (nodes.directory / "release").write_text("other\n")
    nodes.nodes[1].bind(nodes.directory / "release", "/etc/os-release")
    assert nodes.nodes[1].exec(["cat", "/etc/os-release"]).stdout == "other\n"
    assert Path("/etc/os-release").read_text() != "other\n"
    with pytest.raises(LabError, match="would change the host"):
        nodes.nodes[1].bind(nodes.directory / "tool", "/usr/bin/no-such-tool")


def test_freeze_and_thaw(lab) -> None:
    node = lab(1).nodes[0]
    node.exec(
        ["sh", "-c", "(while :; do date +%N > /tmp/tick; sleep 0.01; done) > /dev/null 2>&1 &"]
    )
    file = Path(f"/proc/{node.pid}/root/tmp/tick")
    tick = lambda: file.read_text() if file.exists() else ""  # noqa: E731
    wait_for(tick)
    node.freeze()
    # D: a shell inside vfork, whose child is stopped.
    assert states(set(node.processes())) <= set("TtZD")
    node.thaw()
    before = tick()
    wait_for(lambda: tick() != before)


@pytest.mark.long
def test_nothing_is_left_after_stop(lab) -> None:
    nodes = lab(3)
    # Deaf and in a session of its own: the kernel ends it with process 1.
    nodes.nodes[0].exec(
        ["setsid", "-f", "sh", "-c", "trap '' TERM HUP INT; exec sleep 1000 > /dev/null 2>&1"]
    )
    nodes.nodes[1].freeze()
    links = [nodes.bridge, *(node.link for node in nodes.nodes)]
    numbers = {socket.if_nametoindex(link) for link in links}
    nodes.nodes[2].die()  # its link may go with it
    pids = [pid for node in nodes.nodes for pid in node.processes()]
    assert len(pids) >= 5
    nodes.stop()
    other = lab(1)  # it takes the names that are free again
    nodes.stop()
    assert Path(f"/sys/class/net/{other.nodes[0].link}").exists()
    wait_for(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    # By number: another lab may have links of these names.
    assert not numbers & {number for number, _ in socket.if_nameindex()}


@pytest.mark.long
def test_nodes_end_with_a_test_run_that_is_killed_and_the_next_run_tidies_up(
    tmp_path: Path,
) -> None:
    program = (
        "import time; from pathlib import Path; from tests.lab import Lab\n"
        f"lab = Lab(2, Path({str(tmp_path / 'lab')!r})).__enter__()\n"
        "print(*[n.pid for n in lab.nodes], flush=True); time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=REPO) as run:
        assert run.stdout is not None
        pids = [int(word) for word in run.stdout.readline().split()]
        os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    remove_orphans()
    # By its mark, not by its name: another lab may have taken the subnet meanwhile.
    marks = [path.read_text() for path in Path("/sys/class/net").glob("cclab*/ifalias")]
    assert not [mark for mark in marks if f":{run.pid}:" in mark]


@pytest.mark.long
def test_labs_may_stand_side_by_side(lab) -> None:
    one, two = lab(1), lab(1)
    assert one.subnet != two.subnet
    assert one.nodes[0].exec(["ping", "-c1", "-W1", two.nodes[0].address]).returncode != 0
