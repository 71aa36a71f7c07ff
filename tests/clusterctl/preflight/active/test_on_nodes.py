"""Active tests without torch on real nodes with their own networks: ports, the shared folder, the pool."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.facts import Active, PortSeen
from clusterctl.preflight.active.port_probe import PortProbe
from clusterctl.preflight.active.run import try_shared
from clusterctl.remote.session_pool import SessionPool
from tests.clusterctl.preflight.active.nodes import (
    PORT,
    addresses,
    gather,
    hosts,
    is_listening,
    make_plan,
    run_in,
    running,
    verdicts,
)
from tests.lab import Lab

pytestmark = pytest.mark.lab
PAYLOAD = "i=sys.stdin.buffer;v"  # of the fixed remote command


@pytest.fixture(scope="module")
def lab(module_lab) -> Lab:
    made = module_lab(4)
    (made.directory / "shared").mkdir()
    return made


@pytest.fixture(scope="module")
def pool(lab: Lab) -> Iterator[SessionPool]:
    with gather(lab) as made:
        yield made


def test_doors_of_good_nodes_are_reached_and_closed_again(pool: SessionPool, lab: Lab) -> None:
    meeting_ports = PortProbe(pool, make_plan(lab), {})
    seen = meeting_ports.test()
    for name in lab.names:
        seen_port = seen[name]
        assert isinstance(seen_port, PortSeen)
        assert (seen_port.port, dict(seen_port.failed)) == (PORT, {})
        assert len(seen_port.reached_by) == (3 if name == "node-1" else 1)  # all probe the first
    assert meeting_ports.addresses(hosts(lab)) == addresses(lab)
    assert not any(is_listening(node, PORT) for node in lab.nodes)


def test_a_blocked_port_is_named_and_two_more_have_tried(pool: SessionPool, lab: Lab) -> None:
    node = lab.nodes[2]
    rule = f"pref 10 ipproto tcp sport {PORT} blackhole"
    run_in(node, f"ip rule add {rule}")  # as a firewall that drops: the connection times out
    try:
        seen = PortProbe(pool, make_plan(lab), {}).test()
    finally:
        node.exec(f"ip rule del {rule}".split())
    seen_port = seen["node-3"]
    assert isinstance(seen_port, PortSeen)
    assert seen_port.reached_by == ()
    assert len(seen_port.failed) == 3
    found = [row for row in verdicts(Active("cpu", meeting_ports=seen)) if row[0] == "active.port"]
    assert found == [("active.port", ("node-3",))]


@pytest.mark.long
def test_a_port_that_somebody_holds_is_named_with_its_holder(pool: SessionPool, lab: Lab) -> None:
    program = f"import socket,time; s=socket.create_server(('', {PORT})); open('/run/held','w'); time.sleep(600)"  # fmt: skip
    node = lab.nodes[1]
    process = subprocess.Popen(
        ["nsenter", "-t", str(node.pid), "-m", "-n", "-p", "-u", "--", "python3", "-c", program]
    )
    try:
        waiting = "for n in $(seq 600); do [ -e /run/held ] && exit 0; sleep 0.05; done; exit 1"
        assert node.exec(["sh", "-c", waiting], timeout_s=60).returncode == 0
        seen = PortProbe(pool, make_plan(lab), {}).test()
    finally:
        for pid in running(node, "socket.create_server"):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)
    seen_port = seen["node-2"]
    assert isinstance(seen_port, PortSeen)
    assert seen_port.port is None
    assert "in use" in seen_port.holder
    assert all(isinstance(seen[name], PortSeen) for name in lab.names)


def test_a_shared_folder_is_seen_read_and_left_empty(pool: SessionPool, lab: Lab) -> None:
    folder = lab.directory / "shared"
    shared, writer, error = try_shared(pool, make_plan(lab, shared=folder))
    assert (writer, error) == ("node-1", "")
    for name in lab.names:
        assert isinstance(shared[name].seen_s, float)
        assert isinstance(shared[name].read_bytes_s, float)
    assert list(folder.iterdir()) == []


def test_a_node_with_another_folder_is_named(pool: SessionPool, lab: Lab) -> None:
    folder, node = lab.directory / "shared", lab.nodes[2]
    run_in(node, f"mount -t tmpfs none {folder}")
    try:
        shared, writer, error = try_shared(pool, make_plan(lab, shared=folder, token_s=2.0))
    finally:
        node.exec(["umount", str(folder)])
    found = [
        row
        for row in verdicts(Active("cpu", shared=shared, writer=writer, write_error=error))
        if row[0] == "active.token"
    ]
    assert found == [("active.token", ("node-3",))]
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_says_so(pool: SessionPool, lab: Lab) -> None:
    shared, writer, error = try_shared(pool, make_plan(lab, shared=Path("/proc/nowhere")))
    assert writer == "node-1"
    assert "No such file or directory" in error
    assert set(shared) == set(lab.names)


def test_nothing_is_left_when_the_pool_closes(lab: Lab) -> None:
    others = {node.name: set(running(node, PAYLOAD)) for node in lab.nodes}
    with gather(lab) as pool:
        pool.ask(
            {name: {"op": "listen", "ports": [PORT + 1], "word": "w"} for name in lab.names}, 20
        )
        assert all(is_listening(node, PORT + 1) for node in lab.nodes)
        assert all(set(running(node, PAYLOAD)) > others[node.name] for node in lab.nodes)
    for node in lab.nodes:
        assert set(running(node, PAYLOAD)) == others[node.name]
        assert not is_listening(node, PORT + 1)


@pytest.mark.long
def test_a_node_that_freezes_costs_the_others_the_deadline_and_no_more(lab: Lab) -> None:
    with gather(lab) as pool:
        node = lab.nodes[1]
        node.freeze()
        try:
            answers = pool.ask({name: {"op": "close_ports"} for name in lab.names}, 1.0)
            assert set(pool.lost) == {"node-2"}
            assert pool.lost["node-2"] == "no answer in 4 s"
            assert set(answers) == set(lab.names) - {"node-2"}
            again = pool.ask({name: {"op": "close_ports"} for name in pool.names}, 20.0)
            assert set(again) == set(answers)
        finally:
            node.thaw()
