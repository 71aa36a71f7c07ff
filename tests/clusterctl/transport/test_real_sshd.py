"""Against OpenSSH's own server on lab nodes: real machines that vanish, hang or stand behind others."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.errors import TransportError
from clusterctl.hostfile import parse_hostfile, read_hostfile
from clusterctl.nodes import Node
from clusterctl.remote.fanout import Fanout, NodeResult
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.transport.shell import Done, run
from tests.lab import Lab, LabNode
from tests.lab.node import WORKER

pytestmark = pytest.mark.lab

LIMITS = Limits(tcp_s=1.0, handshake_s=2.0, channel_s=1.0, command_s=2.0)
MARGIN_S = 0.5


def ask_all(
    lab: Lab, command: str = "hostname", harm: Callable[[], None] | None = None, bad: int = 1
) -> NodeResult[Done]:
    """Ask all nodes and do `harm` while their commands run; returns the bad node's result."""
    nodes = read_hostfile(lab.hostfile)
    transport = ParamikoTransport()
    begun = lab.directory / "begun"  # a folder that the nodes share

    def work(node: Node, progress: Progress) -> Done:
        with closing(transport.connect(node, LIMITS, progress)) as connection:
            if node == nodes[bad] and harm:
                return run(connection, f"touch {begun}; sleep 30", b"", LIMITS.command_s)
            return run(connection, command, b"", LIMITS.command_s)

    if harm:
        act = harm

        def later() -> None:
            deadline = time.monotonic() + LIMITS.total_s
            while not begun.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            act()

        threading.Thread(target=later, daemon=True).start()
    started = time.monotonic()
    found: dict[Node, NodeResult[Done]] = {}
    for result in Fanout(nodes, work, deadline_s=LIMITS.total_s):
        found[result.node] = result
        if result.node != nodes[bad]:
            assert result.value is not None, result.unreachable
            assert result.value.out.decode().strip() == result.node.name
            assert time.monotonic() - started < 1.5
    return found[nodes[bad]]


def assert_dead(result: NodeResult[Done], phase: str, limit_s: float, words: str) -> None:
    assert result.unreachable is not None, result.value
    assert result.unreachable.phase == phase
    assert words in result.unreachable.message
    assert result.unreachable.seconds <= limit_s + MARGIN_S


def wait_until_gone(node: LabNode, pattern: str) -> None:
    deadline = time.monotonic() + 5
    while node.exec(["pgrep", "-f", pattern]).stdout:
        assert time.monotonic() < deadline, f"{pattern} still runs"


@pytest.mark.long
def test_sshd_that_is_down_refuses(lab) -> None:
    nodes = lab(3)
    nodes.nodes[1].kill_sshd()
    assert_dead(ask_all(nodes), "tcp", 0.2, "connection refused on port 22")
    nodes.nodes[1].start_sshd()
    assert ask_all(nodes).value is not None


@pytest.mark.long
def test_vanished_network_is_a_tcp_timeout(lab) -> None:
    nodes = lab(3)
    nodes.nodes[1].drop_network()
    assert_dead(ask_all(nodes), "tcp", LIMITS.tcp_s, "no answer on port 22 within 1 s")
    nodes.nodes[1].restore()
    assert ask_all(nodes).value is not None


@pytest.mark.long
def test_frozen_machine_answers_tcp_and_no_banner(lab) -> None:
    nodes = lab(3)
    nodes.nodes[1].freeze()
    assert_dead(ask_all(nodes), "banner", LIMITS.handshake_s, "no ssh banner within 2 s")
    nodes.nodes[1].thaw()
    assert ask_all(nodes).value is not None


@pytest.mark.long
@pytest.mark.parametrize("harm", ["die", "freeze", "drop_network"])
def test_node_lost_in_mid_command_is_a_command_failure(lab, harm: str) -> None:
    nodes = lab(3)
    result = ask_all(nodes, harm=getattr(nodes.nodes[1], harm))
    assert_dead(result, "command", LIMITS.command_s, "still running after 2 s")


@pytest.mark.long
def test_killed_session_is_told_at_once(lab) -> None:
    nodes = lab(2)

    def kill_session() -> None:
        nodes.nodes[1].exec(["pkill", "-9", "-f", "sshd: root@"])

    result = ask_all(nodes, harm=kill_session)
    assert_dead(result, "command", 1.0, "the connection was lost")


@pytest.mark.long
def test_key_that_was_reinstalled_is_refused(lab) -> None:
    nodes = lab(2)
    lines = nodes.known_hosts.read_text().splitlines()
    swapped = [line.split()[0] for line in lines], [line.split()[2] for line in reversed(lines)]
    nodes.known_hosts.write_text(
        "".join(f"{name} ssh-ed25519 {key}\n" for name, key in zip(*swapped, strict=True))
    )
    with pytest.raises(TransportError, match="has changed") as caught:
        ParamikoTransport().connect(read_hostfile(nodes.hostfile)[0], LIMITS, Progress())
    assert caught.value.phase == "hostkey"


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_hashed_known_hosts_of_openssh_are_read(lab) -> None:
    nodes = lab(2)
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", nodes.known_hosts], check=True, capture_output=True
    )
    assert "10.231" not in nodes.known_hosts.read_text()
    assert ask_all(nodes).value is not None


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
@pytest.mark.parametrize("hide", [False, True])
def test_host_on_record_with_another_type_of_key_is_asked_for_that(lab, hide: bool) -> None:
    nodes = lab(1)
    node = nodes.nodes[0]
    second = node.directory / "host_ecdsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", second], check=True)
    config = node.directory / "sshd_config"
    config.write_text(f"{config.read_text()}\nHostKey {second}\n")
    node.kill_sshd()
    node.start_sshd()
    public = " ".join(Path(f"{second}.pub").read_text().split()[:2])
    nodes.known_hosts.write_text(f"{node.address} {public}\n")
    if hide:
        keygen = ["ssh-keygen", "-q", "-H", "-f", nodes.known_hosts]
        subprocess.run(keygen, check=True, capture_output=True)
    progress = Progress()
    target = read_hostfile(nodes.hostfile)[0]
    with closing(ParamikoTransport().connect(target, LIMITS, progress)) as connection:
        assert connection.transport.get_remote_server_key().get_name() == "ecdsa-sha2-nistp256"
    assert progress.notes == (["hostkey: requested again with ecdsa-sha2-nistp256"] if hide else [])


@pytest.mark.long
def test_connection_outlives_its_keys(lab) -> None:
    """In one of weeks they are replaced, where sshd's RekeyLimit asks for it every hour."""
    nodes = lab(1)
    node = nodes.nodes[0]
    config = node.directory / "sshd_config"
    config.write_text(f"{config.read_text()}\nRekeyLimit 64K\n")
    node.kill_sshd()
    node.start_sshd()
    target, sent = read_hostfile(nodes.hostfile)[0], os.urandom(2 << 20)
    with closing(ParamikoTransport().connect(target, LIMITS, Progress())) as connection:
        transport, keys = connection.transport, set()
        for command, data in (("sha256sum", sent), ("head -c 2097152 /dev/zero", b"")):
            keys.add(transport.H)  # of the last key exchange; the first one's is the session's
            done = run(connection, command, data, 20)
            assert done.rc == 0
            expected = hashlib.sha256(sent).hexdigest().encode()
            assert done.out == (expected + b"  -\n" if data else bytes(2 << 20))
        keys.add(transport.H)
    assert len(keys) == 3


def test_signal_ends_a_late_command_under_sshd(lab) -> None:
    nodes = lab(1)
    # Not as root: sshd forwards signals only with privilege separation, which root has not.
    node = replace(read_hostfile(nodes.hostfile)[0], user=WORKER)
    with closing(ParamikoTransport().connect(node, LIMITS, Progress())) as one:
        with pytest.raises(TransportError, match="still running"):
            run(one, "exec sleep 4321", b"", 0.3)
        wait_until_gone(nodes.nodes[0], "sleep 4321")


@pytest.mark.long
def test_more_logins_at_once_than_maxstartups_allows(lab) -> None:
    """One sshd under many names, as behind one address; `MaxStartups 2:100:8` drops the rest."""
    nodes = lab(1, max_startups="6:60:10")
    line = nodes.hostfile.read_text().split(maxsplit=1)[1]
    many = parse_hostfile("".join(f"n{i} {line}" for i in range(16)))
    transport = ParamikoTransport()

    def work(node: Node, progress: Progress) -> bytes:
        with closing(transport.connect(node, Limits(), progress)) as connection:
            return run(connection, "echo x", b"", 10).out

    results = list(Fanout(many, work, deadline_s=30))
    retried = [result for result in results if result.notes]
    for result in results:
        if result.unreachable:  # dropped twice: possible, and then it says what to do
            assert "MaxStartups" in (result.unreachable.hint or "")
    assert sum(result.value == b"x\n" for result in results) >= 12
    assert all("retried" in result.notes[0] for result in retried)


@pytest.mark.long
def test_commands_that_leave_their_input_unread_do_not_cost_the_connection(lab) -> None:
    # paramiko alone: sshd hangs up on all of them (data behind the end of a channel).
    nodes = lab(1)
    node = read_hostfile(nodes.hostfile)[0]
    one = ParamikoTransport().connect(node, Limits(), Progress())
    with closing(one), ThreadPoolExecutor(8) as pool:
        work = [pool.submit(run, one, "exec 0<&-; echo x", bytes(300_000), 20) for _ in range(48)]
        assert {job.result(30).out for job in work} == {b"x\n"}


def through(lab: Lab, home: Path, jump: str, number: int) -> Node:
    """A node as seen from behind `jump`; the way there stands in ssh_config."""
    hosts = [(node.name, node.address) for node in lab.nodes]
    text = "".join(
        f"Host {name}\n HostName {address}\n User root\n IdentityFile {lab.identity}\n"
        f" UserKnownHostsFile {lab.known_hosts}\n"
        for name, address in [*hosts, ("inner", lab.nodes[number].address)]
    )
    (home / ".ssh" / "config").write_text(f"{text}Host inner\n ProxyJump {jump}\n")
    return Node("inner")


@pytest.mark.long
@pytest.mark.parametrize("jump", ["node-1", "root@node-1:22,node-2"])
def test_jump_hosts_one_and_chained(lab, home: Path, jump: str) -> None:
    nodes = lab(3)
    inner = through(nodes, home, jump, 2)
    last = nodes.nodes[1 if "," in jump else 0]
    with closing(ParamikoTransport().connect(inner, LIMITS, Progress())) as connection:
        done = run(connection, "hostname; echo $SSH_CONNECTION", b"", 5)
        assert done.out.decode().split()[:2] == ["node-3", last.address]
        assert run(connection, "cat", bytes(3 << 20), 10).out == bytes(3 << 20)


@pytest.mark.long
def test_many_nodes_share_one_connection_to_the_gate(lab, home: Path) -> None:
    nodes = lab(2)
    inner = through(nodes, home, "node-1", 1)
    many = [Node(f"inner-{i}", host=inner.name) for i in range(12)]
    transport, gate = ParamikoTransport(), nodes.nodes[0]
    sessions = []

    def work(node: Node, progress: Progress) -> bytes:
        with closing(transport.connect(node, Limits(), progress)) as connection:
            return run(connection, "hostname", b"", 10).out

    for result in Fanout(many, work, deadline_s=30):
        assert result.value == b"node-2\n", result.unreachable
        sessions.append(
            len(gate.exec(["pgrep", "-f", "sshd: root@notty|sshd: root$"]).stdout.split())
        )
    assert max(sessions) <= 2  # one login: its monitor and its worker, as sshd names them
    wait_until_gone(gate, "sshd: root")  # given back with the last user


@pytest.mark.long
def test_failure_of_the_gate_names_the_gate(lab, home: Path) -> None:
    nodes = lab(2)
    inner = through(nodes, home, "node-1", 1)
    nodes.nodes[0].kill_sshd()
    with pytest.raises(TransportError, match="jump host node-1: connection refused") as caught:
        ParamikoTransport().connect(inner, LIMITS, Progress())
    assert caught.value.phase == "tcp"


@pytest.mark.long
def test_failure_behind_the_gate_names_the_port(lab, home: Path) -> None:
    nodes = lab(2)
    inner = through(nodes, home, "node-1", 1)
    nodes.nodes[1].kill_sshd()
    with pytest.raises(TransportError, match="jump host node-1 cannot reach port 22") as caught:
        ParamikoTransport().connect(inner, LIMITS, Progress())
    assert caught.value.phase == "tcp"


def test_jump_loop_is_an_error(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host *\n ProxyJump a\n")
    with pytest.raises(TransportError, match="ProxyJump loop"):
        ParamikoTransport().connect(Node("a"), LIMITS, Progress())


@pytest.mark.long
def test_proxy_command_is_used_and_ended(lab, home: Path) -> None:
    nodes = lab(1)
    relay = home / "relay.py"
    relay.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n while d := os.read(0, 65536): s.sendall(d)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    (home / ".ssh" / "config").write_text(f"Host *\n ProxyCommand python3 {relay} %h %p\n")
    node = read_hostfile(nodes.hostfile)[0]
    with closing(ParamikoTransport().connect(node, Limits(), Progress())) as connection:
        assert run(connection, "hostname", b"", 5).out == b"node-1\n"
        assert subprocess.run(["pgrep", "-f", str(relay)], capture_output=True).stdout
    deadline = time.monotonic() + 5
    while subprocess.run(["pgrep", "-f", str(relay)], capture_output=True).stdout:
        assert time.monotonic() < deadline


def test_sftp_of_openssh(lab, tmp_path: Path) -> None:
    nodes = lab(1)
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    node = read_hostfile(nodes.hostfile)[0]
    with (
        closing(ParamikoTransport().connect(node, LIMITS, Progress())) as one,
        one.transport.open_sftp_client() as files,
    ):
        files.put(str(tmp_path / "file"), "/tmp/arrived")
        assert nodes.nodes[0].exec(["wc", "-c", "/tmp/arrived"]).stdout.split()[0] == "100000"


@pytest.mark.long
def test_push_without_sftp_says_what_sshd_lacks_and_leaves_nothing(
    lab, tmp_path: Path, capsys
) -> None:
    nodes = lab(1)
    node = nodes.nodes[0]
    config = node.directory / "sshd_config"
    config.write_text(config.read_text().replace("Subsystem sftp internal-sftp\n", ""))
    assert node.exec(["sh", "-c", "kill -HUP $(cat /run/sshd.pid)"]).returncode == 0
    (tmp_path / "file").write_bytes(b"x" * 1000)
    words = ["push", "--yes", str(tmp_path / "file"), "/tmp/new/folder/", str(nodes.hostfile)]
    deadline = time.monotonic() + 20
    while (code := cli.run(words)) == 3 and time.monotonic() < deadline:
        capsys.readouterr()  # sshd starts again: nobody listens for a moment
    out = capsys.readouterr().out
    assert code == 1, out
    assert "offers no sftp" in out
    assert "Subsystem sftp internal-sftp" in out
    assert node.exec(["ls", "/tmp/new"]).returncode != 0
