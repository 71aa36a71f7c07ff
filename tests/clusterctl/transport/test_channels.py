"""Commands and streams over one connection: nothing blocks for ever, nothing grows without end."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from clusterctl.errors import TransportError
from clusterctl.hostfile import read_hostfile
from clusterctl.nodes import Node
from clusterctl.transport import channels
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.channels import ParamikoConnection
from clusterctl.transport.loopback.nodes import LoopbackCluster
from clusterctl.transport.paramiko_backend import ParamikoTransport
from clusterctl.transport.patched_transport import WINDOW_BYTES
from tests.clusterctl.transport.shell import run

LIMITS = Limits()


@pytest.fixture(scope="module")
def node(module_loopback) -> LoopbackCluster:
    return module_loopback(1)


@pytest.fixture
def connection(node: LoopbackCluster) -> Iterator[ParamikoConnection]:
    with closing(connect(node)) as open_connection:
        yield open_connection


def connect(node: LoopbackCluster) -> ParamikoConnection:
    return ParamikoTransport().connect(read_hostfile(node.hostfile)[0], LIMITS, Progress())


def wait_for(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_streams_of_a_command_are_told_apart(connection: ParamikoConnection) -> None:
    done = run(connection, "cat; echo problem >&2; exit 7", b"in\0put", 5)
    assert (done.rc, done.out, done.err) == (7, b"in\0put", "problem\n")


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("HUP", 1)])
def test_death_by_signal_is_negative(
    connection: ParamikoConnection, name: str, number: int
) -> None:
    assert run(connection, f"kill -{name} $$", b"", 5).rc == -number


def test_large_input_and_output_at_once_do_not_deadlock(connection: ParamikoConnection) -> None:
    data = b"0123456789abcdef" * (3 * WINDOW_BYTES // 16)
    done = run(connection, "tee /dev/stderr", data, 30)
    assert done.out == data
    assert done.err == data[-channels.STDERR_TAIL_BYTES :].decode()


def test_input_that_nobody_reads_is_no_failure(connection: ParamikoConnection) -> None:
    assert run(connection, "exec 0<&-; echo done", bytes(4 * WINDOW_BYTES), 10).out == b"done\n"


def test_late_command_is_ended_on_the_node(connection: ParamikoConnection, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(TransportError, match=r"still running after 0.5 s") as caught:
        run(connection, f"echo $$ > {tmp_path}/pid; exec sleep 60", b"", 0.5)
    assert caught.value.phase == "command"
    assert time.monotonic() - started < 1.0
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not alive(pid))
    assert run(connection, "echo next", b"", 5).out == b"next\n"  # the connection lives on


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    connection: ParamikoConnection,
) -> None:
    started = time.monotonic()
    done = run(connection, "sleep 20 & echo started", b"", 15)
    assert done.out == b"started\n"
    assert time.monotonic() - started < 5


@pytest.mark.long
def test_fifty_commands_at_once_on_one_connection(connection: ParamikoConnection) -> None:
    with ThreadPoolExecutor(50) as pool:
        work = [pool.submit(run, connection, f"cat; echo {i}", b"x", 30) for i in range(50)]
        assert [one.result(30).out for one in work] == [b"x%d\n" % i for i in range(50)]


def test_output_that_arrives_with_the_end_is_not_lost(
    connection: ParamikoConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has looked at the empty buffer, then output and end arrive before it goes on."""
    stream = connection.stream("cat", b"")
    is_ready, asked = stream.channel.recv_ready, iter((False, True))

    def looked_at_too_soon() -> bool:
        if not next(asked, False):
            return is_ready()
        stream.write(b"late\n")
        stream.close_stdin()
        wait_for(lambda: stream.channel.eof_received)
        return False

    monkeypatch.setattr(stream.channel, "recv_ready", looked_at_too_soon)
    lines = (stream.read_line(0.1) for _ in range(20))
    assert next(filter(None, lines)) == b"late"
    with pytest.raises(EOFError):
        stream.read_line(5)


def test_output_behind_the_exit_status_of_a_long_command_is_waited_for(
    connection: ParamikoConnection,
) -> None:
    """sshd may send the status before the last output, also when nothing came for a long time."""
    stream = connection.stream("cat", b"")
    stream._moved -= 60.0
    stream.channel.status_event.set()
    assert stream.read_line(0.2) is None
    stream.write(b"late\n")
    stream.close_stdin()
    assert stream.read_line(5) == b"late"


def test_stream_gives_lines_and_its_input_is_a_lease(connection: ParamikoConnection) -> None:
    stream = connection.stream("while read x; do echo got $x; done; printf rest; exit 5", b"one\n")
    assert stream.read_line(5) == b"got one"
    stream.write(b"two\nthree\n")
    assert stream.read_line(5) == b"got two"
    assert stream.read_line(5) == b"got three"
    assert stream.read_line(0.05) is None
    assert stream.wait(0.05) is None
    stream.close_stdin()
    assert stream.read_line(5) == b"rest"
    for _ in range(2):
        with pytest.raises(EOFError):
            stream.read_line(5)
    assert stream.wait(5) == 5
    stream.close()


def test_stderr_of_a_stream_keeps_its_end_only(connection: ParamikoConnection) -> None:
    stream = connection.stream("seq 200000 >&2; echo done", b"")
    assert stream.read_line(10) == b"done"
    with pytest.raises(EOFError):
        stream.read_line(10)
    assert stream.stderr_tail().endswith("199999\n200000\n")
    assert len(stream.stderr_tail()) <= channels.STDERR_TAIL_BYTES
    stream.close()


@pytest.mark.long
def test_flood_that_nobody_reads_stays_on_the_node(connection: ParamikoConnection) -> None:
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stream = connection.stream("echo first; yes", b"")
    assert stream.read_line(5) == b"first"
    for _ in range(20000):
        assert stream.read_line(5) == b"y"
    buffered = len(stream.channel.in_buffer) + len(stream._buffer)
    assert buffered <= 2 * WINDOW_BYTES
    stream.close()
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 30_000


def test_line_without_end_is_refused(
    connection: ParamikoConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_LINE_BYTES", 100_000)
    stream = connection.stream("tr '\\n' x < /dev/zero", b"")
    with pytest.raises(TransportError, match="a line of over") as caught:
        stream.read_line(10)
    assert caught.value.phase == "parse"
    stream.close()


def test_write_to_a_command_that_does_not_read_ends(
    connection: ParamikoConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WRITE_TIMEOUT_S", 0.5)
    stream = connection.stream("sleep 30", b"")
    started = time.monotonic()
    with pytest.raises(TransportError, match="does not read its stdin"):
        stream.write(bytes(8 << 20))
    assert time.monotonic() - started < 5
    stream.close()


def test_write_after_the_command_has_ended_goes_nowhere(connection: ParamikoConnection) -> None:
    stream = connection.stream("exit 0", b"")
    assert stream.wait(5) == 0
    wait_for(lambda: stream.channel.closed)
    stream.write(b"too late\n")
    stream.close()


def test_lost_connection_is_told_from_an_end(node: LoopbackCluster) -> None:
    with closing(connect(node)) as connection:
        stream = connection.stream("echo up; sleep 30", b"")
        assert stream.read_line(5) == b"up"
        connection.transport.sock.shutdown(2)
        with pytest.raises(TransportError, match="connection was lost") as caught:
            stream.read_line(5)
        assert caught.value.phase == "command"
        with pytest.raises(TransportError):
            stream.write(b"x")
        with pytest.raises(TransportError):
            stream.wait(1)
        with pytest.raises(TransportError, match="connection was lost") as caught:
            run(connection, "true", b"", 5)
        assert caught.value.phase == "channel"


@pytest.mark.long
def test_two_hundred_connections_leave_no_thread_and_no_file(node: LoopbackCluster) -> None:
    connect(node).close()
    # Only our own: other fixtures' threads may come and go.
    wait_for(lambda: not ssh_threads())
    files = open_files()
    transport, target = ParamikoTransport(), read_hostfile(node.hostfile)[0]
    for number in range(200):
        with closing(transport.connect(target, LIMITS, Progress())) as connection:
            if number % 10 == 0:
                run(connection, "true", b"", 5)
            if number % 50 == 0:
                connection.stream("sleep 30", b"")  # left open on purpose
    wait_for(lambda: not ssh_threads())
    assert open_files() == files


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def ssh_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if type(one).__name__ == "PatchedTransport"]


@pytest.mark.long
def test_failed_connections_leave_no_thread_and_no_file(listener) -> None:
    hanging = listener(b"SSH-2.0-Stuck\r\n")
    files = open_files()
    limits = Limits(tcp_s=0.2, handshake_s=0.1)
    bad = Node("bad", "127.0.0.1", hanging.port)
    for _ in range(8):
        with pytest.raises(TransportError):
            ParamikoTransport().connect(bad, limits, Progress())
    wait_for(lambda: not ssh_threads())
    assert open_files() <= files + 8  # the listener's ends, in this same process
