"""The payload on real processes: carried py-spy, refused py-spy, stopped and repaired targets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.jobs.processes import Pick
from clusterctl.nodes import Node
from clusterctl.payload import stacks
from clusterctl.payload.dump.proc_tasks import kernel_lines, open_files, read_file
from clusterctl.payload.jobs.heartbeats import heartbeat
from clusterctl.payload.jobs.processes import rank_number
from clusterctl.remote import payload as ship
from clusterctl.remote.cluster import Cluster
from clusterctl.remote.fanout import NodeResult
from clusterctl.stacks.clues import clues
from clusterctl.stacks.diagnose import DumpOptions, collect, collect_native
from clusterctl.stacks.files import native_text
from clusterctl.stacks.model import NodeView, Proc
from clusterctl.stacks.report import permission_lines
from clusterctl.stacks.snapshot import read_snapshot
from clusterctl.stacks.wait_sites import Sites
from tests.clusterctl.jobs.trees import start_of, state, wait_until
from tests.clusterctl.payload.local import LocalConnection, LocalTransport

HERE = Node("here", host="127.0.0.1")
PROGRAM = """
import faulthandler, signal, sys, time
def waits_here():
    print("up", flush=True)
    while True:
        time.sleep(600)
if "handler" in sys.argv:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
waits_here()
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return f"collect-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def start(tmp_path: Path, run_id: str) -> Iterator[Start]:
    children = []
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def start(*words: str, python: str = sys.executable, rank: int = 0) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [python, str(script), *words], stdout=subprocess.PIPE, stderr=(tmp_path / f"{rank}.log").open("ab"),
            env={"CLUSTERCTL_RUN": run_id, "RANK": str(rank), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def look(run_id: str, env: dict[str, str] | None = None, **looks: object) -> NodeView:
    options = DumpOptions(**{"interval_s": 0.3, "limit_s": 20.0, **looks})  # type: ignore[arg-type]
    transport = LocalTransport({"here": LocalConnection(env)})
    fanout = collect(Cluster([HERE], transport), Pick((run_id,), user=None), options)
    results: list[NodeResult] = list(fanout)
    assert results[0].unreachable is None, results[0].unreachable
    return read_snapshot(results, Sites(), interval_s=0.3, samples=2).nodes[0]


def only(view: NodeView) -> Proc:
    (proc,) = view.procs
    return proc


def fake_py_spy(folder: Path, text: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.long
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 of the system")
def test_py_spy_is_carried_and_leaves_nothing(start: Start, run_id: str, tmp_path: Path) -> None:
    start(python="/usr/bin/python3")
    temp = tmp_path / "tmp"
    temp.mkdir()
    view = look(run_id, {"TMPDIR": str(temp), "PATH": "/usr/bin:/bin"})
    assert view.py_spy is not None
    assert view.py_spy.startswith(str(temp))
    assert only(view).where().startswith("waits_here program.py:6")
    assert list(temp.iterdir()) == []


@pytest.mark.long
def test_stopped_process_is_read_and_left_as_it_was(start: Start, run_id: str) -> None:
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: state(child.pid, start_of(child.pid)) == "T")
    proc = only(look(run_id))
    assert (proc.how, proc.state, proc.progress) == ("py-spy", "T", "stuck")
    assert proc.where().startswith("waits_here")
    assert state(child.pid, start_of(child.pid)) == "T"
    assert not proc.repaired


@pytest.mark.long
def test_process_that_a_dump_left_stopped_is_set_going_again(
    start: Start, run_id: str, tmp_path: Path
) -> None:
    """py-spy issues 390, 416, 565, 587: a dump that dies halfway leaves its target in state T."""
    child = start()
    stops = fake_py_spy(tmp_path, f"kill -STOP {child.pid}; sleep 0.1; echo broken >&2; exit 1")
    proc = only(look(run_id, py_spy=stops))
    assert proc.repaired
    wait_until(lambda: state(child.pid, start_of(child.pid)) == "S")


@pytest.mark.long
def test_hanging_py_spy_costs_its_limit_and_no_more(start: Start, run_id: str, tmp_path: Path) -> None:  # fmt: skip
    start()
    proc = only(look(run_id, py_spy=fake_py_spy(tmp_path, "exec sleep 100"), limit_s=0.3))
    assert proc.how == "kernel"
    assert "no end in 0.3 s" in proc.error


@pytest.mark.long
def test_where_ptrace_is_refused_the_trainer_tells_its_stacks_itself(
    start: Start, run_id: str, tmp_path: Path
) -> None:
    denied = "echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1"
    start("handler")
    deaf = start("no", rank=1)
    view = look(run_id, py_spy=fake_py_spy(tmp_path, denied))
    by_rank = {proc.rank: proc for proc in view.procs}
    assert (by_rank[0].how, by_rank[1].how) == ("faulthandler", "kernel")
    assert by_rank[0].where().startswith("waits_here program.py:6")
    assert by_rank[0].progress == "stuck"
    assert deaf.poll() is None  # SIGUSR1 would have killed it
    snapshot = read_snapshot([], Sites(), interval_s=1, samples=2)
    snapshot.nodes = [view]
    assert any("--sudo" in line for line in permission_lines(snapshot))


@pytest.mark.long
def test_dump_that_is_cut_off_leaves_its_target_running(
    start: Start, run_id: str, tmp_path: Path
) -> None:
    """Ctrl-C at the head in the middle of a dump that stops its target."""
    child = start()
    py_spy = fake_py_spy(tmp_path, f"kill -STOP {child.pid}; exec sleep 100")
    args = {
        "pick": Pick((run_id,), user=None).to_args(HERE), "samples": 2, "interval_s": 0.1, "limit_s": 60.0,
        "budget_s": 60.0, "py_spy": py_spy,
    }  # fmt: skip
    with closing(ship.stream(LocalConnection(), "stacks", args)) as held:
        wait_until(lambda: state(child.pid, start_of(child.pid)) == "T")
        held.channel.close_stdin()
        assert held.channel.wait(20.0) is not None
    wait_until(lambda: state(child.pid, start_of(child.pid)) == "S")


@pytest.mark.long
def test_native_frames_of_a_suspect_are_had_without_leaving_it_stopped(
    start: Start, run_id: str, tmp_path: Path
) -> None:
    child = start()
    transport = LocalTransport({"here": LocalConnection({"TMPDIR": str(tmp_path)})})
    gone = {HERE: "/gone/py-spy"}
    cluster = Cluster([HERE], transport)
    (result,) = collect_native(cluster, {HERE: [child.pid]}, gone, sudo=False)
    assert result.value is not None, result.unreachable
    threads, error, repaired = result.value["native"][str(child.pid)]
    assert (error, repaired) == ("", False)
    text = native_text(threads)
    assert "libc" in text
    assert "waits_here" in text
    wait_until(lambda: state(child.pid, start_of(child.pid)) == "S")


def kernel_log(
    folder: Path, count: int, first_s: float, last_s: float, last: str, uptime_s: float
) -> dict[str, str]:
    """A PATH with a dmesg of `count` left_out lines between two ages, then `last`."""
    folder.mkdir()
    with (folder / "log").open("w") as file:
        for number in range(count):
            age_s = first_s + (last_s - first_s) * number / count
            file.write(f"[{uptime_s - age_s:12.6f}] usb 1-1: new device number {number}\n")
        file.write(f"[{uptime_s - last_s:12.6f}] {last}\n")
    path = folder / "dmesg"
    path.write_text(f"#!/bin/sh\nexec cat {folder}/log\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


XID = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"


@pytest.mark.long
def test_end_of_a_long_kernel_log_is_read_and_the_cut_is_told(start: Start, run_id: str, tmp_path: Path) -> None:  # fmt: skip
    start()
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    env = kernel_log(tmp_path / "log", 60_000, 240.0, 3.0, XID, uptime_s)
    snapshot = read_snapshot([], Sites(), interval_s=1, samples=2)
    snapshot.nodes = [look(run_id, env)]
    texts = [clue.text for clue in clues(snapshot)]
    assert any("Xid 79 on 0000:44:00" in text for text in texts), texts
    assert any(re.search(r"here: its log is longer than 1 MiB, only the last \d+ min \d\d s of it were read", text) for text in texts), texts  # fmt: skip


@pytest.mark.long
def test_long_kernel_log_that_goes_back_an_hour_is_not_said_to_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uptime_s = 100_000.0  # this machine may have started a minute ago
    env = kernel_log(tmp_path / "log", 60_000, 20_000.0, 3.0, XID, uptime_s)
    monkeypatch.setenv("PATH", env["PATH"])
    lines, cut_s = kernel_lines(uptime_s)
    assert [XID in line for _, line in lines] == [True]
    assert cut_s is None


def test_open_file_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.mp4")
    with path.open("wb"):
        (found,) = [name for name in open_files(os.getpid(), 1000) if "caf" in name]
    assert found == f"{tmp_path}/caf\\xe9.mp4"


def test_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(str(place), 100)


@pytest.mark.long
def test_trainer_whose_stderr_is_a_pipe_holds_up_nobody(start: Start, run_id: str, tmp_path: Path) -> None:  # fmt: skip
    """Asked by a signal it writes its stacks where nobody can read them twice."""
    os.mkfifo(tmp_path / "0.log")
    reader = os.open(tmp_path / "0.log", os.O_RDONLY | os.O_NONBLOCK)
    start("handler")
    proc = only(look(run_id, py_spy=fake_py_spy(tmp_path, "echo 'Permission Denied' >&2; exit 1")))
    assert proc.how == "kernel"
    os.close(reader)


@pytest.mark.parametrize("beat", [
    {"step": "7"}, {"step": -1}, {"step": None}, {"phase": 3}, {"phase": None}, {"mono_s": "x"}, {"mono_s": 1e300},
    {"mono_s": None}, {"mono_s": float("nan")}, {"step": True}, {"pid": 1},
])  # fmt: skip
def test_heartbeat_of_another_format_is_none(beat: dict[str, object], tmp_path: Path) -> None:
    one = SimpleNamespace(
        uid=os.getuid(), environ=b"CLUSTERCTL_HEARTBEATS=%s\0" % os.fsencode(tmp_path)
    )
    good = {"pid": 5, "step": 7, "phase": "data", "mono_s": time.monotonic()}
    (tmp_path / "0.json").write_text(json.dumps(good))
    assert heartbeat(one, 5, 0)["step"] == 7
    (tmp_path / "0.json").write_text(json.dumps({**good, **beat}))
    assert heartbeat(one, 5, 0) is None


@pytest.mark.long
def test_looks_between_the_first_and_the_last_are_short(start: Start, run_id: str) -> None:
    child = start()
    view = look(run_id, samples=5, interval_s=0.1)
    proc = only(view)
    assert (proc.progress, proc.pid) == ("stuck", child.pid)
    look_s = {"state": "S", "at_s": 1.0, "tasks": {"7": ["S", 0, 0, None, "python"], "8": ["S", 0, 0, None, "pt_autograd_0"], "9": ["S", 0, 0, None, "pt_nccl"]}, "how": "py-spy", "error": "", "repaired": False, "threads": [[7, "MainThread", 0, False, False], [8, "Dummy", 1, False, False], [9, None, 2, False, False]]}  # fmt: skip
    thinned = stacks.thinned("7", look_s)
    assert thinned == {"state": "S", "repaired": False, "threads": look_s["threads"][:2]}


def test_rank_that_is_no_number_of_a_rank_is_none() -> None:
    assert [rank_number(text) for text in ("7", "0", None, "", "-1", "²", "9" * 5000, "x")] == [7, 0, *[None] * 6]  # fmt: skip
