"""What the kernel says of a rank's end: a real kill for want of memory, recorded lines of a driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.payload.launch import kernel_facts
from clusterctl.payload.launch.kernel_facts import KernelFacts, oom_count
from clusterctl.payload.launch.session import agents_of
from tests.clusterctl.launch.harness import wait_until

MEMORY = Path("/sys/fs/cgroup/memory")  # of version 1
VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers")
LIMIT_BYTES = 200 << 20
EATS = "print('up', flush=True)\nheld = [bytearray(b'x' * (64 << 20)) for _ in range(64)]\n"
EATING_WORKER = (
    "import os, signal, sys\nprint('up', flush=True)\n"
    "child = os.fork()\n"
    "if not child:\n    held = [bytearray(b'x' * (64 << 20)) for _ in range(64)]\n"
    "os.waitpid(child, 0)\n"
    "sys.exit('RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ')\n"
)


@pytest.fixture
def small_cgroup() -> Iterator[Callable[[int], Path]]:
    """`put(pid)`: a process, and what it starts, gets 200 MB of memory."""
    if os.getuid() != 0 or not os.access(MEMORY if not VERSION_2.exists() else VERSION_2, os.W_OK):
        pytest.skip("needs root and a memory cgroup that can be written")
    parent = VERSION_2.parent if VERSION_2.exists() else MEMORY
    group = parent / f"clusterctl-test-{os.getpid()}"
    group.mkdir()
    limit = "memory.max" if VERSION_2.exists() else "memory.limit_in_bytes"
    (group / limit).write_text(str(LIMIT_BYTES))

    def put(pid: int) -> Path:
        (group / "cgroup.procs").write_text(str(pid))
        return group

    yield put

    def left() -> list[str]:
        return (group / "cgroup.procs").read_text().split()

    for pid in left():
        (parent / "cgroup.procs").write_text(pid)
    wait_until(lambda: not left())
    group.rmdir()


@pytest.mark.long
@pytest.mark.parametrize(("program", "code"), [(EATS, -9), (EATING_WORKER, 1)])
def test_rank_or_worker_that_the_kernel_ended_for_memory_is_a_fact(
    agent, tmp_path: Path, small_cgroup: Callable[[int], Path], program: str, code: int
) -> None:
    one = agent()
    wait_until(lambda: agents_of(one.run_id))
    group = small_cgroup(one.pid)
    one.order(program, tmp_path)
    fact = one.hear("fact")
    assert (fact["kind"], fact["rank"]) == ("oom-kernel", 0)
    assert fact["text"].endswith("grew from 0 to 1")
    assert str(group) in fact["text"]
    assert one.hear("rank_ended")["code"] == code


@pytest.mark.long
def test_killed_rank_without_the_kernels_word_is_no_fact(agent, tmp_path: Path) -> None:
    one = agent()
    program = "import os, signal\nprint('up', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    one.start(program, tmp_path)
    kinds = []
    while "gone" not in kinds:
        kinds.append(one.hear()["type"])
    assert "rank_ended" in kinds
    assert "fact" not in kinds


def test_each_kill_explains_one_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom_kill 1\noom_group_kill 0\n")
    monkeypatch.setattr(kernel_facts, "oom_count", lambda pid: (str(file), 1))
    facts = KernelFacts(os.getpid())
    assert facts.of_death(0, -9, []) is None
    file.write_text("low 0\noom_kill 2\n")
    assert facts.of_death(0, 1, ["ValueError: no frames"]) is None
    found = facts.of_death(1, -9, [])
    assert found is not None
    assert found["text"] == f"oom_kill in {file} grew from 1 to 2"
    assert facts.of_death(2, -9, []) is None
    file.write_text("cut")
    assert facts.of_death(2, -9, []) is None


def test_count_is_that_of_the_own_cgroup_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = oom_count(os.getpid())
    assert path is not None
    assert isinstance(count, int)
    monkeypatch.setattr(kernel_facts, "CGROUPS", str(tmp_path))
    assert oom_count(os.getpid())[0] == "/proc/vmstat"
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    (tmp_path / "memory" / "memory.oom_control").write_text("under_oom 0\noom_kill 5\n")
    path, count = oom_count(os.getpid())
    assert path is not None
    assert path.startswith(str(tmp_path))
    assert count == 5


def test_new_xid_lines_are_facts_and_older_ones_are_not(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    os.mkfifo(kmsg)
    facts = KernelFacts(os.getpid(), str(kmsg))
    # Recorded: tests/captures/dmesg/xid-lines.txt, with the head that /dev/kmsg gives a line.
    line = "4,871,%d,-;NVRM: Xid (PCI:0000:44:00): 79, pid=7062, GPU has fallen off the bus.\n"
    with kmsg.open("wb", buffering=0) as writer:
        writer.write(line.encode() % int((time.monotonic() - 600) * 1e6))
        assert facts.xids() == []
        writer.write(line.encode() % int(time.monotonic() * 1e6))
        (fact,) = facts.xids()
        assert facts.xids(is_last=True) == []
    assert (fact["kind"], fact["detail"]) == ("xid", "79")
    assert fact["text"].startswith("NVRM: Xid (PCI:0000:44:00): 79, pid=7062, GPU has fallen off")
    assert 0 <= fact["age_s"] < 5


def test_xid_lines_come_from_the_journal_where_the_log_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = KernelFacts(os.getpid(), str(tmp_path / "none"))
    tool = tmp_path / "journalctl"
    line = "[%.6f] node kernel: NVRM: Xid (PCI:0000:44:00): 95, pid=7, Uncontained"
    old, new = (line % (time.monotonic() + offset_s) for offset_s in (-60.0, 0.0))
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n-- Logs begin --\n{old}\n{new}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel_facts, "JOURNAL_S", 60.0)  # this machine may be busy
    assert facts.xids() == []  # only at the end: it starts a program
    assert [fact["detail"] for fact in facts.xids(is_last=True)] == ["95"]


def test_a_line_from_just_after_the_beginning_is_new_whatever_tenths_its_age_is_told_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    facts = KernelFacts(os.getpid(), str(kmsg))
    facts.began_s = 1000.0
    now_s = iter([1000.06, 1000.06, 1000.07])  # of the log, and of what is new
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    with kmsg.open("a") as writer:
        writer.write("4,871,1000001000,-;NVRM: Xid (PCI:0000:44:00): 79, pid=7, fallen off\n")
    assert [fact["age_s"] for fact in facts.xids()] == [0.1]
