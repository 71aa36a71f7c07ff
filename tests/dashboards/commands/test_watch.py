"""`clusterctl watch` as a user has it: lines, JSON, exit codes, the hook, signals, real nodes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli import run
from clusterctl.transport.loopback.nodes import LoopbackCluster
from dashboards.recording.file_format import Appender
from dashboards.recording.writer import Writer as RecordWriter
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from dashboards.watch.exec_hook import Hook
from tests.dashboards.feeds.test_feeds import until
from tests.dashboards.runs import BEGAN, record, write_run
from tests.dashboards.simulated_hour import BEGIN_S, hour
from trainer.runlog.telemetry import Writer

WAIT_S = 60.0  # a deadline for a loaded machine


def stalled_run(directory: Path) -> Path:
    """400 steps, then ten minutes without one, then ten seconds of steps."""
    run_dir = write_run(directory / "001-model", steps=400)
    writer = Writer(run_dir)
    for step in range(401, 434):
        writer.write(record(step, time_s=BEGAN + 4 + step * 0.3 + 600))
    writer.close()
    return run_dir


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.long
def test_stalled_run_is_a_line_with_a_command_and_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", "--replay", str(stalled_run(tmp_path))]) == 1
    out, err = capsys.readouterr()
    fire, command, clear = out.splitlines()
    assert fire.startswith("2026-11-21 14:0")
    assert "FAIL  run.stalled  001-model  no step for 1 min 0" in fire
    assert command.split() == ["try:", "clusterctl", "dump-stacks", "nodes.txt"]
    assert "clear run.stalled  001-model  after 9 min" in clear
    assert err == "1 alert, 0 still there\n"


@pytest.mark.long
def test_healthy_run_says_nothing_and_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "002-model")
    assert run(["watch", "--replay", str(run_dir), "-q"]) == 0
    assert capsys.readouterr().out == "0 alerts, 0 still there\n"


@pytest.mark.long
def test_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "--json", "--replay", str(stalled_run(tmp_path))]) == 1
    fire, clear, end = json_lines(capsys.readouterr().out)
    assert {one["schema"] for one in (fire, clear, end)} == {1}
    assert (fire["type"], clear["type"], end["type"]) == ("fire", "clear", "end")
    alert = fire["alert"]
    assert (alert["id"], alert["severity"], alert["subject"]) == (
        "run.stalled",
        "fail",
        "001-model",
    )
    assert alert["try"] == "clusterctl dump-stacks nodes.txt"
    assert fire["time_s"] == pytest.approx(BEGAN + 124 + 63, abs=3)
    assert clear["alert"]["cleared_s"] - clear["alert"]["first_s"] > 500
    assert (end["fired"], end["active"], end["exit_code"]) == (1, [], 1)


@pytest.mark.long
def test_recording_tells_the_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sessions in one file; what the recording itself knew of alerts is not repeated."""
    path = tmp_path / "night.rec"
    lost = [Incident("gpu_lost", 2, 6, 20, 60), Incident("throttle", 1, 3, 70, 100)]
    for begin_s in (BEGIN_S, BEGIN_S + 4000):
        writer = RecordWriter(Appender(path, 1 << 30), names(3), "nodes.txt", 1.0)
        for batch in hour(lost, nodes=3, begin_s=begin_s, seconds=110):
            writer.take(batch[-1].now_s, batch[:-1])  # type: ignore[union-attr]
        writer.close()
    assert run(["watch", "--replay", str(path), "--json", "--skip", "run"]) == 1
    *found, _ = json_lines(capsys.readouterr().out)
    # Throttling was over for 10 s when the first session ended and must be so for a minute: between the
    # sessions nobody looked.
    story = [
        ("fire", "gpu.missing"), ("clear", "gpu.missing"), ("fire", "gpu.throttle"),
        ("fire", "gpu.missing"), ("clear", "gpu.throttle"), ("clear", "gpu.missing"), ("fire", "gpu.throttle"),
    ]  # fmt: skip
    assert [(one["type"], one["alert"]["id"]) for one in found] == story
    assert found[3]["time_s"] - found[0]["time_s"] == pytest.approx(4000, abs=1)
    assert run(["watch", "--replay", str(path), "--check", "gpu.ecc"]) == 0
    (tmp_path / "none").write_text("nothing")
    assert run(["watch", "--replay", str(tmp_path / "none")]) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--check", "gpu"], 0),
        (["--check", "run.stalled"], 1),
        (["--skip", "run"], 0),
        (["--severity", "fail"], 1),
        (["--for", "90"], 0),  # of the run's time: nothing stalls that early
        (["--for", "5m"], 1),
    ],
)
def test_what_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int
) -> None:
    assert run(["watch", "--replay", str(stalled_run(tmp_path)), *options]) == code


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--check", "gpu.idel"], "did you mean gpu.idle?"),
        (["--demo", "--replay", "x"], "exclude each other"),
        (["--demo", "--once", "--for", "5"], "--for cannot be used with --once"),
        (["--for", "soon"], "is not a valid duration"),
        (["--demo", "--exec", "no-such-program-here x"], "no program is called"),
        (["--demo", "--exec", "'"], "--exec"),
        (["--demo", "--once", "--exec", ""], "--exec needs a command"),
        (["--replay", "nowhere"], "there is no run nowhere"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["watch", *options]) == 2
    assert said in capsys.readouterr().err


def test_without_hostfile_and_run_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["watch", "--once"]) == 2
    assert "nodes.txt does not exist" in capsys.readouterr().err


@pytest.mark.long
def test_hook_gets_the_alert_as_json_and_nothing_is_read_by_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "keep"
    keep.write_text(f'#!/bin/sh\necho "$#:$1" >> {tmp_path}/words\ncat >> {tmp_path}/stdin\n')
    keep.chmod(0o755)
    hook = f"{keep} '$(touch {tmp_path}/pwned); *'"
    assert run(["watch", "-q", "--replay", str(stalled_run(tmp_path)), "--exec", hook]) == 1
    assert (tmp_path / "words").read_text() == f"1:$(touch {tmp_path}/pwned); *\n" * 2
    assert not (tmp_path / "pwned").exists()
    fire, clear = json_lines((tmp_path / "stdin").read_text())
    assert (fire["type"], clear["type"]) == ("fire", "clear")
    assert fire["alert"]["id"] == "run.stalled"


@pytest.mark.long
def test_failure_of_the_hook_is_told_and_changes_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["watch", "--replay", str(stalled_run(tmp_path)), "--exec", "false"]
    assert run(args) == 1
    assert "the hook false ended with exit code 1" in capsys.readouterr().err
    assert run([*args, "--json"]) == 1
    types = [one["type"] for one in json_lines(capsys.readouterr().out)]
    assert types.count("hook-failed") == 2
    assert types[-1] == "end"


def test_hook_that_hangs_is_killed_at_its_deadline() -> None:
    hook = Hook(["sleep", "600"], 0.3)
    hook.put({"text": "x" * 1_000_000})  # it does not read its stdin either
    assert "was killed after 0.3 s" in problems_of(hook)
    hook.close()


def test_children_of_a_hook_end_with_it(tmp_path: Path) -> None:
    script = tmp_path / "hang"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/part\nmv {tmp_path}/part {tmp_path}/pid\nwait\n")  # fmt: skip
    script.chmod(0o755)
    hook = Hook([str(script)], 600.0)
    hook.put({})
    until((tmp_path / "pid").exists, WAIT_S)
    hook._timeout_s = 0.1
    hook.close()
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())), WAIT_S)


def test_hook_that_ends_by_a_signal_without_a_name_does_not_end_the_hook() -> None:
    hook = Hook(["sh", "-c", "kill -40 $$"], 60.0)
    for _ in range(2):
        hook.put({})
        assert problems_of(hook) == "the hook sh was ended by signal 40"
    hook.close()


@pytest.mark.long
def test_hook_hears_of_every_alert_while_stdout_is_a_full_disk(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    hook = f"sh -c 'cat >> {heard}'"
    line = [sys.executable, "-m", "clusterctl", "watch", "--replay", str(stalled_run(tmp_path))]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*line, "--exec", hook], stdout=full, stderr=subprocess.PIPE, text=True, timeout=WAIT_S
        )
    assert [one["type"] for one in json_lines(heard.read_text())] == ["fire", "clear"]
    assert done.stderr.endswith("error: cannot write to standard output: No space left on device\n")
    assert done.returncode == 1


def problems_of(hook: Hook) -> str:
    found: list[str] = []

    def has_some() -> bool:
        found.extend(hook.problems())
        return bool(found)

    until(has_some, WAIT_S)
    return found[0]


def test_hook_that_is_too_slow_drops_alerts_and_says_so() -> None:
    hook = Hook(["sleep", "600"], 0.5)
    for number in range(200):
        hook.put({"number": number})
    hook.close()
    problems = " ".join(hook.problems())
    assert "too slow" in problems
    assert "were not given to the hook" in problems


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long
def test_what_is_watched_can_be_recorded_and_told_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "night.rec"
    options = ["--json", "--check", "gpu.missing"]
    assert run(["watch", "--demo", "--for", "2", "--record", str(path), *options]) == 1
    first = [one["alert"]["id"] for one in json_lines(capsys.readouterr().out)[:-1]]
    assert run(["watch", "--replay", str(path), *options]) == 1
    again = [one["alert"]["id"] for one in json_lines(capsys.readouterr().out)[:-1]]
    assert first == again == ["gpu.missing"]
    assert run(["watch", "--once", "--demo", "--record", str(path)]) == 2


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_end_it_cleanly(tmp_path: Path, number: int, code: int) -> None:
    run_dir = write_run(tmp_path / "003-model")
    ends = (watched_until(number, run_dir, tmp_path) for _ in range(10))
    # Before the first reading it rightly says that it does not know the run.
    ended = next(end for end in ends if "its files are being read" not in end[2])
    assert ended == (code, "", "0 alerts, 0 still there\n")


def watched_until(number: int, run_dir: Path, folder: Path) -> tuple[int, str, str]:
    """Exit code and what `watch` prints after it has said that it watches and gets the signal."""
    child = subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "watch", "--run", str(run_dir), "--skip", "run"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        lines = [child.stderr.readline() for _ in range(2)]  # no hostfile; watching
        assert lines[1].startswith("watching the run"), lines
        child.send_signal(number)
        out, err = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
    return child.returncode, out, err


@pytest.mark.long
def test_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    """`clusterctl watch | head -1`."""
    line = f"{shlex.quote(sys.executable)} -m clusterctl watch --demo | head -1; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    first, code = done.stdout.splitlines()
    assert "gpu.missing" in first or "run.straggler" in first
    assert code in ("1", "141")  # click's and ours
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_node_that_is_gone_is_exit_code_3_and_the_others_are_watched(
    loopback: Callable[..., LoopbackCluster],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(loopback(2).hostfile.read_text() + "gone host=127.0.0.1 port=9\n")
    assert run(["watch", str(hosts), "--json", "--once", "--check", "node.down"]) == 3
    *fires, end = json_lines(capsys.readouterr().out)
    gone = [one["alert"] for one in fires if "gone" in one["alert"]["nodes"]]
    assert len(gone) == 1
    assert "refused" in gone[0]["text"]
    assert end["silent_nodes"] >= 1
    assert end["exit_code"] == 3


def test_run_that_cannot_be_read_is_not_a_run_without_alerts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = write_run(tmp_path / "001-x", steps=3)
    (run_dir / "telemetry.jsonl").unlink()
    (run_dir / "telemetry.jsonl").mkdir()
    why = f"{run_dir}/telemetry.jsonl: it is a folder, no plain file"
    args = ["watch", "--run", str(run_dir), "--once", "--interval", "0.2"]
    assert run([*args, "--json"]) == 3
    fire, end = json_lines(capsys.readouterr().out)
    assert (fire["alert"]["id"], fire["alert"]["text"]) == ("run.unread", why)
    assert end["run_unread"] == why
    assert run([*args, "--check", "run.stalled"]) == 3
    assert f"0 alerts, 0 still there; the run is not known: {why}" in capsys.readouterr().err
    assert run(["export", "--run", str(run_dir), "--once", "-", "--interval", "0.2"]) == 3
    found = capsys.readouterr()
    assert 'clusterctl_run_read{run="001-x"} 0.0' in found.out
    assert f"run 001-x is not known: {why}" in found.err
