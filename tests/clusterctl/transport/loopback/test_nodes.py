"""Loopback nodes: private, complete, and gone without a trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from clusterctl.errors import ClusterctlError
from clusterctl.hostfile import read_hostfile
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.channels import ParamikoConnection
from clusterctl.transport.loopback.nodes import MARK, LoopbackCluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from tests.clusterctl.transport.shell import run


def connect(cluster: LoopbackCluster, number: int = 0) -> ParamikoConnection:
    node = read_hostfile(cluster.hostfile)[number]
    return ParamikoTransport().connect(node, Limits(), Progress())


def wait_for(condition: Callable[[], object], timeout_s: float = 8.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.mark.long
def test_nodes_are_processes_of_their_own_with_private_files(loopback) -> None:
    cluster = loopback(2, env={"COLOUR": "blue"})
    assert cluster.directory.stat().st_mode & 0o777 == 0o700
    assert cluster.identity.stat().st_mode & 0o777 == 0o600
    pids = set()
    for number in range(2):
        with closing(connect(cluster, number)) as connection:
            out = run(connection, "echo $PPID $COLOUR; env; pwd", b"", 5).out.decode()
        pids.add(out.split()[0])
        assert out.split()[1] == "blue"
        assert f"HOME={os.environ['HOME']}\n" in out
        assert out.splitlines()[-1] == os.environ["HOME"]
        assert "VIRTUAL_ENV" not in out  # nothing of the starting shell leaks into a node
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


@pytest.mark.long
def test_only_127_0_0_1_listens(loopback) -> None:
    cluster = loopback(1)
    listening = [
        one for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == cluster.ports[0]
    ]  # fmt: skip
    assert [one.laddr.ip for one in listening] == ["127.0.0.1"]


@pytest.mark.long
def test_stop_leaves_no_process_port_or_key(loopback, tmp_path: Path) -> None:
    cluster = loopback(2)
    with closing(connect(cluster)) as connection:
        # The stubborn kind: its own session, deaf to SIGTERM and SIGHUP, still writing.
        run(
            connection, f"setsid sh -c 'trap \"\" TERM HUP; echo $$ > {tmp_path}/deaf; while :; do sleep 1; done'"
            " > /dev/null 2>&1 < /dev/null &",
            b"", 5,
        )  # fmt: skip
        stream = connection.stream(f"echo $$ > {tmp_path}/held; sleep 100", b"")
        pids = [pid_in(tmp_path / "deaf"), pid_in(tmp_path / "held")]
        ports, directory = cluster.ports, cluster.directory
        started = time.monotonic()
        cluster.stop()
        assert time.monotonic() - started < 5
        stream.close()
    assert not [pid for pid in pids if running(pid)]
    assert not directory.exists()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)
    cluster.stop()  # idempotent


@pytest.mark.long
def test_node_that_was_killed_leaves_nothing_either(loopback, tmp_path: Path) -> None:
    cluster = loopback(1)
    with closing(connect(cluster)) as connection:
        connection.stream(f"echo $$ > {tmp_path}/held; sleep 100", b"")
        pid = pid_in(tmp_path / "held")
        server = psutil.Process(pid).ppid()
        os.kill(server, signal.SIGKILL)
        cluster.stop()
    wait_for(lambda: not running(pid))


@pytest.mark.long
def test_client_that_goes_away_ends_its_command(loopback, tmp_path: Path) -> None:
    cluster = loopback(1)
    connection = connect(cluster)
    # Reads its lease: ends by itself at once. Deaf to everything: ends by SIGKILL.
    connection.stream(f"echo $$ > {tmp_path}/reader; cat > /dev/null; touch {tmp_path}/clean", b"")
    connection.stream(
        f"trap '' TERM HUP; echo $$ > {tmp_path}/deaf; while :; do sleep 1; done", b""
    )
    reader, deaf = pid_in(tmp_path / "reader"), pid_in(tmp_path / "deaf")
    connection.close()
    wait_for(lambda: not running(reader), 2)
    assert (tmp_path / "clean").exists()
    wait_for(lambda: not running(deaf))


@pytest.mark.long
def test_background_of_a_finished_command_stays_until_the_node_stops(
    loopback, tmp_path: Path
) -> None:
    cluster = loopback(1)
    with closing(connect(cluster)) as connection:
        run(connection, f"nohup sleep 100 > /dev/null 2>&1 & echo $! > {tmp_path}/pid", b"", 5)
    pid = pid_in(tmp_path / "pid")
    assert running(pid)
    cluster.stop()
    assert not running(pid)


def test_nodes_end_when_the_program_that_started_them_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from clusterctl.transport.loopback.nodes import LoopbackCluster\n"
        f"c = LoopbackCluster(['a', 'b'], Path({str(tmp_path / 'nodes')!r})).__enter__()\n"
        "print(*[p.pid for p in c._processes.values()], flush=True); time.sleep(100)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    starter.kill()
    starter.wait(10)
    starter.stdout.close()
    wait_for(lambda: not any(running(pid) for pid in pids))


@pytest.mark.long
def test_no_zombie_stays_on_a_node(loopback, tmp_path: Path) -> None:
    cluster = loopback(1)
    with closing(connect(cluster)) as connection:
        # The middle shell ends first, so the sleeper becomes the node's own child.
        run(connection, f"sh -c 'sleep 0.2 & echo $! > {tmp_path}/orphan' > /dev/null", b"", 5)
        orphan = pid_in(tmp_path / "orphan")
        wait_for(lambda: not psutil.pid_exists(orphan))


@pytest.mark.long
def test_password_login_and_forwarding_are_refused(loopback) -> None:
    import paramiko

    cluster = loopback(1)
    with closing(connect(cluster)) as connection, pytest.raises(paramiko.ChannelException):
        connection.transport.open_channel(
            "direct-tcpip", ("127.0.0.1", 1), ("127.0.0.1", 0), timeout=5
        )
    transport = paramiko.Transport(("127.0.0.1", cluster.ports[0]))
    try:
        transport.start_client(timeout=5)
        with pytest.raises(paramiko.BadAuthenticationType):
            transport.auth_password("root", "root")
    finally:
        transport.close()


@pytest.mark.long
def test_files_go_there_and_back_by_sftp(loopback, tmp_path: Path) -> None:
    cluster = loopback(1)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_000))
    with closing(connect(cluster)) as connection, connection.transport.open_sftp_client() as files:
        there = str(tmp_path / "there")
        files.put(str(source), there)
        assert files.stat(there).st_size == 300_000
        files.get(there, str(tmp_path / "back"))
        with pytest.raises(FileNotFoundError):
            files.stat(f"{there}2")
        with pytest.raises(FileNotFoundError):
            files.open(f"{there}/a/b", "w")
        assert files.normalize(".") == os.environ["HOME"]
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_node_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    cluster = LoopbackCluster(["a"], tmp_path / "nodes")
    with pytest.raises(ClusterctlError, match="loopback node a does not start"):
        cluster.__enter__()
    assert not (tmp_path / "nodes").exists()


@pytest.mark.long
def test_mark_tells_clusters_apart(loopback) -> None:
    marks = set()
    for cluster in (loopback(1), loopback(1)):
        with closing(connect(cluster)) as connection:
            marks.add(run(connection, f"echo ${MARK}", b"", 5).out)
    assert len(marks) == 2


def test_folder_of_another_user_takes_no_keys(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to make another user's folder")
    (tmp_path / "nodes").mkdir()
    os.chown(tmp_path / "nodes", 65534, 65534)
    with (
        pytest.raises(ClusterctlError, match="is not your own folder"),
        LoopbackCluster(["a"], tmp_path / "nodes"),
    ):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
