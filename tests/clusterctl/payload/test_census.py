"""The census on this machine: rights, hanging things, old interpreters."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from checks.facts import Fleet, KernelLog, Unknown
from checks.finding import Verdict
from checks.parsers.census import parse_census
from checks.parsers.kernel_log import INTERESTING
from checks.runner import run_checks
from clusterctl.payload.collect import clock as collect_clock
from clusterctl.payload.collect import ports
from clusterctl.payload.collect import processes as collect_processes
from clusterctl.remote import payload as ship
from clusterctl.remote.cluster import Cluster
from tests.clusterctl.payload.local import LocalConnection, LocalTransport, tools_only
from tests.clusterctl.remote.test_payload import PYTHON38, needs_python38

REFUSE = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
FULL = {"everything": True, "growth_s": 0.02, "log": INTERESTING}


def census(env: dict[str, str], **args: object):
    return parse_census("n1", ship.probe(LocalConnection(env), "census", {**FULL, **args}, 60))


@pytest.mark.long
def test_kernel_log_that_may_not_be_read_is_unknown_and_sudo_is_only_tried_if_asked(
    tmp_path: Path,
) -> None:
    env = tools_only(
        tmp_path / "bin", dmesg=REFUSE, journalctl="exit 1",
        sudo=f"printf '%s\\n' \"$*\" >> {tmp_path}/asked; echo '[ 9.000000] NVRM: Xid (PCI:0000:44:00): 79, lost'",
    )  # fmt: skip
    refused = census(env).kernel_log
    assert isinstance(refused, Unknown)
    assert "not permitted" in refused.reason
    assert not (tmp_path / "asked").exists()
    read = census(env, sudo=True).kernel_log
    assert isinstance(read, KernelLog)
    assert [one.xid for one in read.events] == [79]
    assert (tmp_path / "asked").read_text() == "-n dmesg\n"


def test_tools_that_hang_delay_their_own_section_only(tmp_path: Path) -> None:
    env = tools_only(tmp_path / "bin", chronyc="sleep 100", ip="sleep 100", dmesg="echo '[ 1.0] x'")
    begun = time.monotonic()
    facts = census(env, tool_timeout_s=1.0)
    assert time.monotonic() - begun < 30
    assert not isinstance(facts.clock, Unknown)
    assert isinstance(facts.clock.tracking, Unknown)
    assert isinstance(facts.kernel_log, KernelLog)
    assert not isinstance(facts.network, Unknown)
    assert not any(one.addresses for one in facts.network.interfaces)


def test_without_any_tool_everything_else_is_still_known(tmp_path: Path) -> None:
    facts = census(tools_only(tmp_path / "bin"))
    assert facts.gpus.state == "no-tool"
    for value in (facts.shell_limits, facts.mounts, facts.processes, facts.system, facts.fabric):
        assert not isinstance(value, Unknown)


@pytest.mark.long
@needs_python38
def test_everything_runs_on_a_real_python_38(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(str(PYTHON38))
    args = {
        "names": ["@"],
        "files": ["/etc/passwd"],
        "paths": ["/tmp"],
        "nvml": True,
        "workdir": "/",
    }
    env = {"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"}
    answer = ship.probe(LocalConnection(env), "census", {**FULL, **args}, 60, nvml=True)
    assert answer["node"]["python"].startswith("3.8.")
    bad = {
        name: section["err"] for name, section in answer["sections"].items()
        if section["state"] == "error" or "Traceback" in section["err"] or "NameError" in section["err"]
    }  # fmt: skip
    assert not bad
    facts = parse_census("n1", answer)
    assert not isinstance(facts.mounts, Unknown)
    assert facts.files["/etc/passwd"]


@pytest.mark.long
def test_nothing_is_left_of_a_census(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    ship.probe(
        LocalConnection({"MARK": mark}),
        "census",
        {**FULL, "files": ["/"], "tool_timeout_s": 0.1},
        60,
    )
    deadline = time.monotonic() + 30
    while left := [
        pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and _has(pid, mark)
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _has(process: Path, mark: str) -> bool:
    try:
        return f"MARK={mark}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adjtimex")
def test_look_brings_the_offset_of_both_clocks() -> None:
    from clusterctl.nodes import Node
    from clusterctl.preflight.run import collect

    transport = LocalTransport({"n1": LocalConnection()})
    (result,) = list(collect(Cluster([Node("n1")], transport), lambda node: {"growth_s": 0.02}))
    assert result.value is not None, result.unreachable
    facts = parse_census("n1", result.value)
    assert isinstance(facts.connect_s, float)
    assert not isinstance(facts.clock, Unknown)
    exchange = facts.clock.exchange
    assert not isinstance(exchange, Unknown)
    assert exchange.samples == 8
    assert abs(exchange.offset_s) <= exchange.error_s  # it is the same clock
    assert 0 < result.value["cpu_s"] < 5


@pytest.mark.long
def test_environment_is_read_with_the_folders_of_pth_files_and_without_their_code(
    tmp_path: Path,
) -> None:
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    elsewhere = tmp_path / "elsewhere"
    for folder in (site / "torch-2.9.1+cpu.dist-info", elsewhere / "colossalai-0.5.0.egg-info"):
        folder.mkdir(parents=True)
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text("cuda = '12.8'\n")
    (site / "add.pth").write_text(f"# a comment\n{elsewhere}\n\nimport os; os.mkdir({str(tmp_path / 'ran')!r})\n")  # fmt: skip
    # A closed environment does not see what its user has installed at home.
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / ".local/lib" / version / "site-packages/ghost-1.0.dist-info").mkdir(parents=True)
    python = str(tmp_path / "env/bin/python")
    env = {**tools_only(tmp_path / "bin"), "HOME": str(tmp_path)}
    found = census(env, python=python).software
    assert not isinstance(found, Unknown)
    assert (found.executable, found.prefix) == (python, str(tmp_path / "env"))
    assert found.installed == {"torch": "2.9.1+cpu", "colossalai": "0.5.0"}
    assert found.packages["torch"] == "2.9.1+cpu"
    assert found.packages["av"] is None
    assert found.torch_cuda == "12.8"
    assert not (tmp_path / "ran").exists()


def test_a_process_whose_last_turn_the_kernel_forgot_has_slept_at_most_as_long_as_it_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A move to another CPU sets it to 0, which was read as: since boot."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        turns = {child.pid: 0.0, 1: 0.0, os.getpid(): 90.0, "self": 100.0}
        monkeypatch.setattr(collect_processes, "last_run", turns.get)
        assert 0 <= int(collect_processes.blocked_since(child.pid)[0]) < collect_processes.YOUNG_S
        assert collect_processes.blocked_since(os.getpid())[0] == "10"
        monkeypatch.setattr(collect_processes, "age_s", lambda start: 3600.0)
        assert collect_processes.blocked_since(1)[0] == "?"
    finally:
        child.kill()
        child.wait()


@pytest.mark.long
def test_of_a_log_that_is_too_long_the_end_is_kept_and_the_rest_is_not_called_good(
    tmp_path: Path,
) -> None:
    noise = (
        "print('[ %d.000000] nothing at all, %s' % (n, 'x' * 80)) for n in range({first}, 100000)"
    )
    early = "print('[ 5.000000] NVRM: Xid (PCI:0000:44:00): 64, early')"
    late = "print('[ 200000.000000] NVRM: Xid (PCI:0000:44:00): 79, late')"

    def log_of(code: str) -> KernelLog:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "log.py").write_text(code)
        found = census(tools_only(folder / "bin", dmesg=f"exec python3 {folder}/log.py")).kernel_log
        assert isinstance(found, KernelLog)
        return found

    both = log_of(f"{early}\n[{noise.format(first=9)}]\n{late}\n")
    assert [one.xid for one in both.events] == [79]
    assert both.lines < 100000
    quiet = log_of(f"{early}\n[{noise.format(first=9)}]\n")
    assert quiet.events == ()
    assert quiet.reaches_s is not None  # what was before its oldest line is not known
    short = log_of(f"[{noise.format(first=99990).replace('% (n,', '% (n - 99990,')}]")
    assert (short.events, short.lines, short.reaches_s) == ((), 10, None)


def test_logs_are_looked_at_beyond_the_first_deep_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/b/c/d/deep", "a/b/old", "z/new", "top"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (1000.0, 9000.0 if name == "z/new" else 1000.0))
    assert sorted(collect_clock.log_times(str(tmp_path))) == [1000.0, 1000.0, 9000.0]
    monkeypatch.setattr(collect_clock, "LOG_FILES", 3)
    assert list(collect_clock.log_times(str(tmp_path))) == [1000.0]  # the nearest


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a /proc of its own")
def test_processes_that_may_not_be_seen_are_not_called_absent(tmp_path: Path) -> None:
    proc = "mount -t proc -o hidepid=2 proc /proc && setpriv --reuid=65534 --regid=65534 --clear-groups"
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python3"
    real = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    python.write_text(
        f'#!/bin/sh\nexec unshare -m -p -f sh -c \'{proc} {real} "$@"; exit $?\' sh "$@"\n'
    )
    python.chmod(0o755)
    tmp_path.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"}
    if subprocess.run([python, "-c", ""], env=env, check=False).returncode:
        pytest.skip("no namespaces here")
    facts = census(env)
    assert not isinstance(facts.processes, Unknown)
    assert "cannot be seen" in facts.processes.hidden
    assert not isinstance(facts.clock, Unknown)
    assert isinstance(facts.clock.daemons, Unknown)
    found = run_checks(Fleet((facts,)), only=["host.blocked", "host.zombies"]).findings
    assert {one.verdict for one in found} == {Verdict.UNKNOWN}


def test_a_port_that_a_census_under_another_name_holds_for_a_moment_is_free(monkeypatch) -> None:
    """One machine of two names is asked twice at the same time."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        monkeypatch.setattr(ports.time, "sleep", lambda _: listener.close())
        assert ports.try_once(port).startswith("Address already in use by pid ")
        assert ports.try_port(port) == "free"
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen(1)
        monkeypatch.setattr(ports.time, "sleep", lambda _: None)
        assert f"by pid {os.getpid()}" in ports.try_port(listener.getsockname()[1])
