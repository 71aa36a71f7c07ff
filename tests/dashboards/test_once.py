from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.cli import run
from dashboards import once
from dashboards.feeds.run_dir import RunDirFeed
from dashboards.model.run_progress import figures
from dashboards.model.samples import (
    READING,
    EventSample,
    NodeDown,
    NodeSample,
    RunOpened,
    RunRead,
    Sample,
    Tick,
)
from dashboards.model.state import State, initial_state
from dashboards.reduce import fold
from tests.dashboards.model.test_state import busy
from tests.dashboards.model.test_table import seconds
from tests.dashboards.runs import cpu_cluster, write_run
from trainer.runlog.telemetry import Event


def state_of(*samples: Sample, nodes: tuple[str, ...] = ("a", "b")) -> State:
    return fold(initial_state(nodes, now_s=0.0), [*samples, Tick(2.0)])


GOOD = (busy("a", 1.0), busy("b", 1.0))
FAILED = (RunOpened("d", "1", 0.0), EventSample(Event("failed"), 1.0, "journal"))


@pytest.mark.parametrize(
    ("samples", "code"),
    [
        (GOOD, 0),
        ((NodeSample("a", 1.0), NodeSample("b", 1.0)), 0),  # machines without GPUs are fine
        ((busy("a", 1.0), NodeDown("b", 1.0, "tcp", "refused")), 3),
        ((busy("a", 1.0),), 3),
        ((busy("a", 1.0), busy("b", 1.0, gpus=None, gpu_error="hangs")), 3),
        ((*GOOD, busy("b", 1.5, count=7)), 1),
        ((*GOOD, *FAILED), 1),
        ((*GOOD, *FAILED, RunRead(1.0, READING)), 3),  # of an earlier attempt, as far as we know
        ((*GOOD, *FAILED, RunRead(1.0, READING), RunRead(1.5)), 1),
        ((busy("a", 1.0), NodeDown("b", 1.0, "tcp", "refused"), *FAILED), 1),
    ],
)
def test_exit_code_says_the_worst(samples: tuple[Sample, ...], code: int) -> None:
    assert once.exit_code(state_of(*samples)) == code


def test_odd_gpu_is_a_finding() -> None:
    assert once.exit_code(seconds(6)) == 1


def test_nodes_that_only_the_plan_names_are_not_held_against_the_run() -> None:
    state = state_of(RunOpened("d", "1", 0.0, ("x", "y"), (1, 1)), nodes=())
    assert once.exit_code(state) == 0


def test_run_whose_files_cannot_be_read_is_unknown_and_says_why() -> None:
    state = state_of(*GOOD, *FAILED, RunRead(1.0, "outputs/1/telemetry.jsonl: Stale file handle"))
    why = "outputs/1/telemetry.jsonl: Stale file handle"
    assert once.verdict(state).endswith(f"; run 1 unknown ({why}) at step 0")
    document = once.as_json(state)
    assert document["run"]["figures"]["status"] == "unknown"
    assert document["run"]["figures"]["why_unknown"] == why


def test_long_run_is_read_to_its_end_past_the_time_that_nodes_have(tmp_path: Path) -> None:
    write_run(tmp_path / "001-x", steps=300)
    feed = RunDirFeed(tmp_path / "001-x", clock=time.time, interval_s=0.01)
    feed.POLLS_AT_ONCE, feed._samples = 10, queue.Queue(10)
    state = once.collect(feed, interval_s=1.0, patience_s=0.0)
    assert state.run is not None
    assert (state.run.unread, figures(state.run, state.now_s).step) == ("", 300)


@pytest.mark.long
def test_collecting_ends_when_all_have_answered() -> None:
    feed = cpu_cluster(1000.0)
    state = once.collect(feed, interval_s=1.0, patience_s=5.0)
    assert feed.closed
    assert once.verdict(state) == "2 of 2 nodes answer; run 001-STDiT3-demo running at step 479"


def test_json_is_json_and_unknown_is_null() -> None:
    state = state_of(busy("a", 1.0, cpu=float("nan")), NodeDown("b", 1.0, "auth", "denied"))
    data = json.loads(json.dumps(once.as_json(state), allow_nan=False))
    assert data["nodes"][0]["reading"]["cpu"] is None
    assert data["nodes"][1]["unreachable"] == {"phase": "auth", "message": "denied"}
    assert data["exit_code"] == 3


def top(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clusterctl", "top", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60)


@pytest.mark.long
def test_replay_without_a_terminal_prints_the_end_of_the_run(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "outputs" / "001-STDiT3-demo", steps=900)
    done = top(tmp_path, "--replay", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert "run 001-STDiT3-demo: finished" in done.stdout
    assert "step 900/900" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.long
def test_newest_run_below_outputs_is_found_without_a_hostfile(tmp_path: Path) -> None:
    write_run(tmp_path / "outputs" / "001-STDiT3-demo", steps=900)
    done = top(tmp_path, "--once", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"]) == (1, "top")
    assert document["run"]["figures"]["step"] == 900
    assert "no hostfile" in done.stderr


@pytest.mark.long
def test_nothing_to_look_at_is_a_usage_error(tmp_path: Path) -> None:
    done = top(tmp_path)
    assert done.returncode == 2
    assert "nodes.txt does not exist" in done.stderr


@pytest.mark.long
def test_folder_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    done = top(tmp_path, "--run", str(tmp_path))
    assert done.returncode == 2
    assert f"there is no run in {tmp_path}" in done.stderr


def test_unknown_theme_is_a_usage_error_without_screens_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["top", "--demo", "--once", "--theme", "clusterctl-dya"]) == 2
    assert "did you mean clusterctl-day?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "gives"), [("export", ""), ("watch", "JSON lines"), ("top", "One JSON document")]
)
def test_help_says_what_json_gives(
    command: str, gives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    found = re.findall(r"^ +--json +(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [text[: len(gives)] for text in found] == [gives] * bool(gives)


@pytest.mark.parametrize(
    ("command", "others"),
    [("top", "--run, --replay"), ("watch", "--run, --replay"), ("export", "--run")],
)
def test_sources_exclude_each_other(
    command: str, others: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--demo", "--run-dir", "x"]) == 2
    assert f"{others} and --demo exclude each other" in capsys.readouterr().err


@pytest.mark.long
def test_one_look_loads_neither_textual_nor_paramiko(tmp_path: Path) -> None:
    code = (
        "import sys; from clusterctl.cli import run; rc = run(['top', '--demo', '-q']); "
        "bad = {'textual', 'paramiko', 'torch', 'plotext'} & set(sys.modules); "
        "assert rc == 1, rc; assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("22 of 24 nodes answer; 183/192 GPUs, 1 odd")
