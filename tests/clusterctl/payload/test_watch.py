"""The watcher as it runs on a node: real interpreter, real /proc; drivers are stand-ins on PATH."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.payload.files import locks, private
from clusterctl.payload.watching import host as watch_host
from clusterctl.payload.watching.kernel_log import KernelLog
from clusterctl.remote import payload as ship
from dashboards.feeds.watch_decoder import Decoder
from dashboards.model.samples import NodeSample
from tests.captures import nvml_library
from tests.clusterctl.payload.local import LocalConnection, tools_only

ROW = "0, NVIDIA H100 80GB HBM3, 698.30 W, 700.00 W, 100 %, 71204 MiB, 81559 MiB, 64, 1980 MHz"
NO_GPU = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="this machine has GPUs of its own"
)


@contextmanager
def watch(
    env: dict[str, str], interval_s: float = 0.1, nvml: bool = False, **args: Any
) -> Iterator[ship.PayloadStream]:
    connection = LocalConnection(env)
    args = {"interval_s": interval_s, **args}
    with closing(ship.stream(connection, "watch", args, nvml=nvml)) as stream:  # type: ignore[arg-type]
        yield stream


class Watcher:
    """Lines of a stream as what is known of the node: `said` by key, `sample` as the head has it."""

    def __init__(self, stream: ship.PayloadStream) -> None:
        self.stream = stream
        self.decoder = Decoder("n")
        self.said: dict[str, Any] = {}
        self.number = 0
        self.bytes = 0

    def until(self, condition: Callable[[], Any], deadline_s: float = 30) -> NodeSample:
        """Read until the condition holds; the reading then."""
        end = time.monotonic() + deadline_s
        while self.number == 0 or not condition():
            assert time.monotonic() < end, f"did not happen in {deadline_s} s: {self.said}"
            line = self.stream.receive(1.0)
            if line is None:
                continue
            text = json.dumps(line, separators=(",", ":")).encode()
            self.bytes += len(text) + 1
            if self.decoder.take(text, time.time()):
                self.number = line["n"]
                for key, value in line.get("key", line.get("d")).items():
                    self.said[key] = value
        sample = self.decoder.sample(time.time())
        assert sample is not None
        return sample


@NO_GPU
def test_machine_without_gpus_tells_cpu_memory_load_and_that_there_are_none(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path)) as stream:
        watcher = Watcher(stream)
        sample = watcher.until(lambda: watcher.number >= 3)
    assert sample.gpus == ()
    assert sample.cpus == os.cpu_count()
    assert sample.cpu is not None
    assert 0 <= sample.cpu <= 1
    assert sample.load1 is not None
    assert sample.memory is not None
    assert 0 < sample.memory < 1
    assert sample.network_bytes_s is not None
    assert sample.links is not None
    assert sample.up_s is not None


def test_disks_are_told_and_one_that_hangs_is_unknown(tmp_path: Path) -> None:
    stat = f'case "$4" in {tmp_path}*) exec sleep 60;; *) echo 4096 1000 250;; esac'
    with watch(tools_only(tmp_path / "bin", stat=stat), paths=[str(tmp_path)]) as stream:
        watcher = Watcher(stream)
        sample = watcher.until(lambda: "disks" in watcher.said)
    assert sample.disks is not None
    by_path = {disk.path: disk for disk in sample.disks}
    assert by_path["/"].full == 2 / 3  # 750 and 1,000 blocks in whole MiB
    assert by_path[str(tmp_path)].used_bytes is None


def test_lines_come_at_the_interval_and_do_not_drift(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path), interval_s=0.1) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: True)
        first, begun = watcher.number, time.monotonic()
        watcher.until(lambda: watcher.number >= first + 10)
        assert time.monotonic() - begun > 0.5  # never faster; later is the machine's load


def test_what_stands_still_is_not_said_again(tmp_path: Path) -> None:
    smi = f'while :; do echo "{ROW}"; sleep 0.3; done'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: "csv" in watcher.said)
        watcher.said.pop("csv")
        number = watcher.number
        sample = watcher.until(lambda: watcher.number > number + 5)
    assert "csv" not in watcher.said
    assert sample.gpus is not None
    assert sample.gpus[0].power_w == 698.3


def test_question_about_the_time_is_answered_at_once(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path), interval_s=60) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: True)
        before = time.time()
        stream.send({"ping": 7})
        line = stream.receive(30)
        assert line is not None
        assert line["pong"] == 7
        assert before - 0.01 <= line["t"] <= time.time() + 0.01


def test_watcher_ends_when_stdin_closes_with_the_tool_it_follows(tmp_path: Path) -> None:
    env = tools_only(
        tmp_path, **{"nvidia-smi": f'echo $$ > {tmp_path}/pid; echo "{ROW}"; exec sleep 60'}
    )
    with watch(env) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: "csv" in watcher.said)
        smi = int((tmp_path / "pid").read_text())
        stream.channel.close_stdin()
        with pytest.raises(EOFError):
            watcher.until(lambda: False)
        assert stream.channel.wait(30) == 0
    end = time.monotonic() + 30
    while Path(f"/proc/{smi}/cmdline").exists() and Path(f"/proc/{smi}/cmdline").read_text():
        assert time.monotonic() < end, "nvidia-smi lives on"
        time.sleep(0.02)


@pytest.mark.long
def test_second_watcher_of_a_session_and_node_ends_the_first(tmp_path: Path) -> None:
    session = uuid.uuid4().hex
    env = tools_only(tmp_path / "bin")
    with watch(env, session=session, node="a") as first, watch(env, session=session, node="b") as other:  # fmt: skip
        for stream in (first, other):
            one = Watcher(stream)
            one.until(lambda: True)
        with watch(env, session=session, node="a") as second:
            watcher = Watcher(second)
            watcher.until(lambda: True)
            assert first.channel.wait(30) == 0
            assert other.channel.wait(0) is None


@pytest.mark.long
def test_frozen_watcher_is_ended_by_the_next_one(tmp_path: Path) -> None:
    env, session = tools_only(tmp_path / "bin"), uuid.uuid4().hex
    with watch(env, session=session, node="a") as first:
        one = Watcher(first)
        one.until(lambda: True)
        os.kill(first.channel.process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        with watch(env, session=session, node="a") as second:
            watcher = Watcher(second)
            watcher.until(lambda: True)
            assert first.channel.wait(30) == -signal.SIGKILL


TRY_ALL_SOCKETS = """
import socket
for line in open("/proc/net/unix"):
    name = line.split()[-1]
    if "clusterctl" in name:
        try:
            socket.socket(socket.AF_UNIX).connect("\\0" + name[1:] if name[0] == "@" else name)
        except OSError:
            pass
"""


def test_watcher_is_not_ended_by_another_user(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to be another user too")
    session = uuid.uuid4().hex
    with watch(tools_only(tmp_path), session=session, node="a") as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: True)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/env"]
        subprocess.run([*nobody, "python3", "-I", "-S", "-c", TRY_ALL_SOCKETS], check=True, cwd="/", env={"PATH": "/usr/bin:/bin"})  # fmt: skip
        number = watcher.number
        watcher.until(lambda: watcher.number > number + 5)
        assert stream.channel.wait(0) is None


def test_process_that_has_the_number_of_an_older_watcher_is_let_alone(tmp_path: Path) -> None:
    session = uuid.uuid4().hex
    path = private.lock_path("watch", session, "a")
    with subprocess.Popen(["sleep", "60"]) as bystander:
        lock, _ = locks.take_lock(path, f"{bystander.pid} 1")  # it began at another moment
        assert lock is not None
        try:
            with watch(tools_only(tmp_path), session=session, node="a") as stream:
                Watcher(stream).until(lambda: True)  # better two watchers than none
            assert bystander.poll() is None
        finally:
            locks.drop_lock(lock, path)
            bystander.kill()


def test_text_of_nvidia_smi_is_followed(tmp_path: Path) -> None:
    smi = f'while :; do echo "{ROW}\n1{ROW[1:]}"; sleep 0.3; done'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        watcher = Watcher(stream)
        gpus = watcher.until(lambda: watcher.said.get("csv")).gpus
    assert gpus is not None
    assert [(gpu.index, gpu.power_w, gpu.util) for gpu in gpus] == [(0, 698.3, 1.0), (1, 698.3, 1.0)]  # fmt: skip


def test_nvidia_smi_that_knows_no_loop_is_asked_again(tmp_path: Path) -> None:
    smi = f'echo x >> {tmp_path}/asked; echo "{ROW}"'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: len((tmp_path / "asked").read_text()) >= 4)
        assert watcher.until(lambda: True).gpus is not None


def test_broken_driver_is_unknown_with_its_own_words(tmp_path: Path) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    smi = f'echo "{words}"; exit 9'
    with watch(tools_only(tmp_path, **{"nvidia-smi": smi})) as stream:
        watcher = Watcher(stream)
        sample = watcher.until(lambda: "ended (9)" in (watcher.said.get("gpu_error") or ""))
    assert sample.gpus is None
    assert words in sample.gpu_error


def test_hung_driver_silences_the_gpus_and_not_the_node(tmp_path: Path) -> None:
    with watch(tools_only(tmp_path, **{"nvidia-smi": "exec sleep 60"})) as stream:
        watcher = Watcher(stream)
        sample = watcher.until(lambda: "no answer for" in (watcher.said.get("gpu_error") or ""))
        assert sample.gpus is None
        assert sample.memory_total_bytes


def stand_in(tmp_path: Path, pid: int) -> dict[str, str]:
    """The environment of a node whose libnvidia-ml is compiled; `pid` computes on its GPU 0."""
    nvml_library.build(tmp_path, pid)
    env = tools_only(tmp_path / "bin", **{"nvidia-smi": "echo must not be asked; exit 1"})
    return {**env, "LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.long
def test_nvml_comes_along_as_source_and_is_preferred(tmp_path: Path) -> None:
    """The shipped pynvml talks to a library of NVML's names that is compiled here."""
    env = dict(os.environ, CLUSTERCTL_RUN="run-7", RANK="24")
    with subprocess.Popen(["sleep", "300"], env=env) as rank:
        try:
            with watch(stand_in(tmp_path, rank.pid), nvml=True) as stream:
                watcher = Watcher(stream)
                sample = watcher.until(lambda: watcher.said.get("procs"))
        finally:
            rank.kill()
    first, second, lost = sample.gpus or ()
    assert (first.name, first.power_w, first.power_limit_w) == ("Stand-in H100", 690, 700.0)
    assert (second.util, second.memory_used_bytes, second.temperature_c) == (0.97, 71 * 2**30, 64)
    assert second.sm_mhz is None  # not supported is unknown
    assert (first.energy_j, second.energy_j) == (123456, None)
    assert (first.throttle, second.throttle) == ("", "hw thermal")  # no word of the power cap
    assert (first.ecc_errors, second.ecc_errors, first.nvlinks) == (0, 3, (3, 4))
    assert lost.error == "GPU is lost"
    assert lost.power_w is None
    assert sample.processes is not None
    (process,) = sample.processes
    assert (process.pid, process.gpu, process.run, process.rank) == (rank.pid, 0, "run-7", 24)
    assert (process.name, process.memory_bytes) == ("sleep", 70 * 2**30)


READ_GPUS = """
import json, threading, time
from clusterctl.payload.watching import gpus
gpus.NVML_AGAIN_S, gpus.SMI_AGAIN_S = 0.5, 0.1
reader = gpus.Gpus(0.05)
threading.Thread(target=reader.read_forever, daemon=True).start()
while True:
    print(json.dumps(reader.newest()), flush=True)
    time.sleep(0.02)
"""


@pytest.mark.long
def test_nvml_is_asked_again_after_it_has_failed(tmp_path: Path) -> None:
    """As on a node that has just started, and when its driver is loaded again."""
    broken = tmp_path / "broken"
    broken.touch()
    env = stand_in(tmp_path, os.getpid())
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nwhile :; do echo "{ROW}"; sleep 0.2; done\n')
    env |= {"NVML_BROKEN": str(broken), "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", READ_GPUS]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None

        def until(key: str) -> None:
            end = time.monotonic() + 30
            for line in child.stdout or ():
                if key in json.loads(line):
                    return
                assert time.monotonic() < end, line

        try:
            for _ in range(2):
                until("csv")
                broken.unlink()
                until("g0")
                broken.touch()
            until("csv")
        finally:
            child.kill()


def test_xid_lines_are_told_once_with_address_number_and_age() -> None:
    log = KernelLog()
    now = time.monotonic()
    lines = (
        ("NVRM: Xid (PCI:0000:0f:00): 94, pid=2503421, name=python3, Ch 00000008", now - 5.0),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7062, Uncontained: LTC TAG", now),
        ("NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.", None),
        ("NVRM: Xid (PCI:0000:0f:00): 31, pid=1, long ago", now - 7200.0),
        ("mlx5_core 0000:9c:00.0: 252.056 Gb/s available PCIe bandwidth", now),
    )
    for text, stamp_s in lines:
        log._take(text, stamp_s)
    told = log.new_lines()
    assert [line[1:3] for line in told] == [["0000:0f:00", 94], ["0000:01:00", 95], ["0000:44:00.0", 79]]  # fmt: skip
    assert told[0][0] == pytest.approx(5.0, abs=2.0)
    assert log.new_lines() == []


@pytest.mark.parametrize("is_one_record", [True, False])
def test_card_off_the_bus_without_a_number_is_told(is_one_record: bool) -> None:
    """Three lines of the driver; /dev/kmsg has them as one, with the breaks as \\x0a."""
    record = (
        r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:2901) installed in this system "
        r"has\x0aNVRM: fallen off the bus and is not responding to commands."
    )
    log = KernelLog()
    for text in [record] if is_one_record else record.split(r"\x0a"):
        log._take(text, None)
    assert [line[1:] for line in log.new_lines()] == [
        ["0000:b3:00.0", 79, "GPU has fallen off the bus"]
    ]


STAT = """
case "$4" in
  /refused) echo "stat: cannot read file system information for '/refused': Permission denied" >&2; exit 1;;
  /dead) exec sleep 60;;
  *) echo 1048576 1000 500;;
esac"""


def test_disk_that_refuses_is_told_from_one_that_hangs(tmp_path: Path) -> None:
    paths = ["/refused", "/dead", "/good"]
    with watch(tools_only(tmp_path, stat=STAT), paths=paths) as stream:
        watcher = Watcher(stream)
        sample = watcher.until(lambda: watcher.said.get("disks"))
    found = {disk.path: (disk.full, disk.error) for disk in sample.disks or ()}
    assert found["/good"] == (0.5, "")
    assert found["/dead"] == (None, "")
    assert found["/refused"] == (None, "Permission denied")


def test_disk_stays_in_the_list_while_it_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that new mounts push it out of would read as if it were gone, and well."""
    mounts = ["/dev/a / ext4", "fs:/data /data nfs4"]
    monkeypatch.setattr(watch_host, "read_word", lambda path: "\n".join(mounts))
    disks = watch_host.Disks([])
    assert disks.of_interest() == ["/", "/data"]
    mounts[1:1] = [f"fs:/{n} /new{n} nfs4" for n in range(40)]
    assert disks.of_interest()[:2] == ["/", "/data"]
    assert len(disks.of_interest()) == watch_host.DISKS
    del mounts[-1]
    assert "/data" not in disks.of_interest()

    before = disks.of_interest()
    monkeypatch.setattr(watch_host, "read_word", lambda path: None)
    assert disks.of_interest() == before


def follow_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Any:
    env = tools_only(tmp_path, journalctl=script)
    monkeypatch.setenv("PATH", env["PATH"])
    log = KernelLog()
    threading.Thread(target=log._follow_journal, args=("not allowed",), daemon=True).start()
    return log


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def end_of(pid: Path) -> None:
    until(lambda: pid.exists() and pid.read_text().strip())
    os.kill(int(pid.read_text()), signal.SIGTERM)


def test_journal_that_shows_nothing_is_no_log_without_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As journalctl for a user who may not read it: no line, no word, and it stays up."""
    log = follow_journal(tmp_path, monkeypatch, f"echo $$ >{tmp_path}/pid; exec sleep 300")
    until(lambda: (tmp_path / "pid").exists())
    assert "no line of the kernel's log" in log.why
    end_of(tmp_path / "pid")
    until(lambda: "journalctl ended" in log.why)


def test_one_line_of_the_kernel_shows_that_the_journal_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "echo '[   12.345] node kernel: ACPI: button'"
    script = f"echo $$ >{tmp_path}/pid; echo '-- No entries --'; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; {line}; exec sleep 300"  # fmt: skip
    monkeypatch.setenv("PATH", os.environ["PATH"])
    sleep = shutil.which("sleep")
    log = follow_journal(tmp_path, monkeypatch, script.replace("sleep", str(sleep)))
    until(lambda: (tmp_path / "pid").exists())
    assert log.why
    (tmp_path / "go").touch()
    until(lambda: not log.why)
    end_of(tmp_path / "pid")


def test_kernel_log_that_is_an_empty_device_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers have /dev/null there: it gives nothing, and at once, for ever."""
    log = KernelLog()
    opened, followed = os.open, []
    monkeypatch.setattr(os, "open", lambda path, flags: opened("/dev/null", flags))
    log._follow_journal = followed.append
    log.read_forever()
    assert followed == ["/dev/kmsg is empty"]


def test_journal_is_followed_where_the_log_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = f"[{time.monotonic():.6f}]"
    line = f"{stamp} node kernel: NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus."
    env = tools_only(tmp_path, journalctl=f'echo $$ >{tmp_path}/pid; echo "{line}"; exec sleep 300')
    monkeypatch.setenv("PATH", env["PATH"])
    log = KernelLog()
    reader = threading.Thread(target=log._follow_journal, args=("not allowed",), daemon=True)
    reader.start()
    found: list[Any] = []
    end = time.monotonic() + 30
    while not found:
        assert time.monotonic() < end, log.why
        found = log.new_lines()
        time.sleep(0.01)
    assert found[0][2] == 79
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    reader.join(30)
    assert log.why.startswith("not allowed; journalctl ended")


@NO_GPU
def test_watcher_is_cheap(tmp_path: Path) -> None:
    """On the node at most 1 % of a core at 1 Hz and 2 kB a line; measured here at 10 Hz.

    The limit has room for a machine that is busy with other tests; tests/bench/top.py has the figure.
    """
    with watch(tools_only(tmp_path)) as stream:
        watcher = Watcher(stream)
        watcher.until(lambda: watcher.number > 3)
        first, said = watcher.number, watcher.bytes
        pid = stream.channel.process.pid  # type: ignore[attr-defined]
        begun = cpu_seconds(pid)
        watcher.until(lambda: watcher.number >= first + 30)
        spent = cpu_seconds(pid) - begun
    assert spent / 30 < 0.03, f"{1000 * spent / 30:.2f} ms a line"
    assert (watcher.bytes - said) / 30 < 2000


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
