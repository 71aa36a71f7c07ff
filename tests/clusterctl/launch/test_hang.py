"""A run that takes no step is looked at, then stopped; the look never holds the stop up for long."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launch import hang
from clusterctl.launch.hang import StepClock
from clusterctl.launch.journal import INCIDENTS_FILE
from clusterctl.launch.plan import Timing
from clusterctl.launch.state import RunResult
from tests.clusterctl.launch.harness import REPO, Bench, Launch, read_lines, tagged, wait_until
from trainer.runlog.telemetry import Event, StepRecord

GLOO = REPO / "tests" / "clusterctl" / "stacks" / "gloo_trainer.py"
RUN_GLOO = (
    f"import runpy, sys\nsys.path.insert(0, {str(REPO)!r})\n"
    f"sys.argv[0] = {str(GLOO)!r}\nrunpy.run_path({str(GLOO)!r}, run_name='__main__')\n"
)
# One step, another one when FOLDER/go is there, and the end when FOLDER/end is.
STEPS = (
    "import os, sys, time\n"
    f"sys.path.insert(0, {str(REPO)!r})\n"
    "from pathlib import Path\n"
    "from trainer.runlog.telemetry import StepRecord, Writer\n"
    "folder = Path(sys.argv[1])\n"
    "def wait_for(name):\n"
    "    while not (folder / name).exists(): time.sleep(0.02)\n"
    "if os.environ['RANK'] == '0':\n"
    "    writer = Writer(Path(os.environ['CLUSTERCTL_RUN_DIR']))\n"
    "    writer.write(StepRecord(1, 9, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01))\n"
    "    wait_for('go')\n"
    "    writer.write(StepRecord(2, 9, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01))\n"
    "wait_for('end')\n"
)


def record(step: int) -> StepRecord:
    return StepRecord(step, 100, 0, 2, 8, 0.5, 1.0, 1e-3, 0.01)


def test_first_step_has_its_own_limit_and_events_before_it_do_not_count() -> None:
    clock = StepClock(Timing(start_s=50, hang_s=10), 1000.0)
    clock.heard(Event("resume"), 1040.0)
    assert not clock.is_late(1050.0)
    assert clock.is_late(1050.1)
    assert clock.sentence() == "no step within 50 s of the start"
    clock.heard(record(7), 1051.0)
    assert not clock.is_late(1061.0)
    assert clock.is_late(1061.1)
    assert clock.sentence() == "no step for 10 s; the last was 7 of 100"


def test_slow_run_is_given_five_times_its_longest_step() -> None:
    clock = StepClock(Timing(hang_s=10), 0.0)
    for step, at_s in enumerate((5.0, 6.0, 46.0, 47.0)):
        clock.heard(record(step), at_s)
    assert clock.limit_s == 200
    assert not clock.is_late(247.0)
    assert clock.is_late(247.1)


def test_saved_checkpoint_is_a_sign_of_life_and_a_sleeping_head_is_no_hang() -> None:
    clock = StepClock(Timing(hang_s=10), 0.0)
    clock.heard(record(1), 0.0)
    clock.heard(Event("checkpoint"), 8.0)
    assert not clock.is_late(18.0)
    clock.slept(3600.0)
    assert not clock.is_late(3618.0)


def test_save_gets_three_times_the_limit() -> None:
    clock = StepClock(Timing(hang_s=10), 0.0)
    clock.heard(record(1), 0.0)
    clock.is_saving = True
    assert not clock.is_late(30.0)
    assert clock.is_late(30.1)


def test_zero_is_no_limit() -> None:
    clock = StepClock(Timing(start_s=0, hang_s=0), 0.0)
    assert not clock.is_late(1e9)
    clock.heard(record(1), 0.0)
    assert not clock.is_late(1e9)


class Blocked:
    """A diagnosis that is not ready before it is let go."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        self.released.wait(60)
        raise RuntimeError("let go")


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch):
    one = Blocked()
    monkeypatch.setattr(hang, "diagnose", one)
    yield one
    one.released.set()


def names(launch: Launch) -> list[str]:
    return [event["event"] for event in launch.events()]


def test_stop_waits_for_a_look_that_hangs_no_longer_than_its_limit(
    bench: Bench, blocked: Blocked
) -> None:
    timing = Timing(hang_s=0.5, look_s=1.0, fail_grace_s=1.0)
    launch = bench.launch(bench.plan(STEPS, str(bench.directory), timing=timing))
    result = launch.result()
    assert not blocked.released.is_set()  # nobody waited for it
    assert result.exit_code == 1
    assert result.reason.startswith("no step for")
    assert result.verdict == "UNKNOWN: the ranks could not be looked at (no verdict within 1 s)"
    assert result.stacks is None
    assert result.hint == "--hang-timeout SECONDS allows more"
    assert read_lines(launch.plan.run_dir / INCIDENTS_FILE)[0]["error"] == "no verdict within 1 s"
    assert result.leftovers == result.unconfirmed == ()


def test_stop_follows_although_the_look_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("no threads left")

    monkeypatch.setattr(hang, "diagnose", fail)
    timing = Timing(hang_s=0.5, fail_grace_s=1.0)
    launch = bench.launch(bench.plan(STEPS, str(bench.directory), timing=timing))
    result = launch.result()
    assert result.verdict == (
        "UNKNOWN: the ranks could not be looked at (OSError: no threads left)"
    )
    assert [name for name in names(launch) if name in ("hang", "verdict", "failure", "end")] == [
        "hang", "verdict", "failure", "end",
    ]  # fmt: skip
    assert tagged(launch.plan.run_id) == []


def test_step_that_comes_while_ranks_are_looked_at_saves_the_run(
    bench: Bench, blocked: Blocked
) -> None:
    timing = Timing(hang_s=0.5, look_s=60.0)
    launch = bench.launch(bench.plan(STEPS, str(bench.directory), timing=timing))
    wait_until(blocked.asked.is_set, 30)
    (bench.directory / "go").touch()
    wait_until(lambda: "goes-on" in names(launch), 30)
    (bench.directory / "end").touch()
    result = launch.result()
    assert result.ok, result
    assert read_lines(launch.plan.run_dir / INCIDENTS_FILE) == []


def test_ctrl_c_does_not_wait_for_the_look(bench: Bench, blocked: Blocked) -> None:
    timing = Timing(hang_s=0.5, look_s=600.0, grace_s=1.0)
    launch = bench.launch(bench.plan(STEPS, str(bench.directory), timing=timing))
    wait_until(blocked.asked.is_set, 30)
    launch.stop.set()
    assert launch.result().exit_code == 130


def gloo(bench: Bench, ranks: int) -> tuple[Launch, Path]:
    """A running gloo job with loader workers, one rank on a node."""
    folder = bench.directory / "job"
    folder.mkdir()
    os.mkfifo(folder / "gil")
    os.mkfifo(folder / "fifo")
    (folder / "order").write_text("go")
    timing = Timing(start_s=120.0, hang_s=8.0, look_s=60.0, fail_grace_s=1.0)
    plan = bench.plan(
        RUN_GLOO, str(folder), timing=timing, python=sys.executable, env=("WORKERS=1",)
    )
    launch = bench.launch(plan)
    wait_until(lambda: all((folder / f"up-{rank}").exists() for rank in range(ranks)), 120)
    return launch, folder


def judged(launch: Launch) -> tuple[RunResult, dict[str, Any]]:
    """How a hung run ended, and its one incident; stacks, journal and proof are looked at."""
    result = launch.result(180)
    run_dir = launch.plan.run_dir
    assert result.exit_code == 1, result
    assert result.reason.startswith("no step for "), result
    assert result.leftovers == result.unconfirmed == ()
    assert tagged(launch.plan.run_id) == []
    (incident,) = read_lines(run_dir / INCIDENTS_FILE)
    assert result.stacks == str(run_dir / incident["stacks"])
    report = json.loads((run_dir / incident["stacks"] / "report.json").read_text())
    assert report["verdict"] == incident["verdict"]
    assert (run_dir / incident["stacks"] / "index.html").exists()
    (verdict,) = [event for event in launch.events() if event["event"] == "verdict"]
    assert verdict["text"] == result.verdict == incident["headline"]
    return result, incident


@pytest.mark.long
@pytest.mark.timeout(400)
def test_blocked_clip_of_a_real_job_is_named_then_everything_is_stopped(
    bench_on: Callable[..., Bench], loopback: Any
) -> None:
    launch, folder = gloo(bench_on(loopback(2)), 2)
    (folder / "block-1").touch()
    result, incident = judged(launch)
    (suspect,) = incident["verdict"]["suspects"]
    assert (suspect["node"], suspect["rank"], suspect["role"]) == ("node-2", 1, "loader")
    assert "_read_from_stream gloo_trainer.py" in suspect["site"]
    assert result.verdict is not None
    assert result.verdict.startswith("HANG: rank 1 waits for data; its loader 0 (node-2) has not")
    assert result.failed_rank == 1
    assert list((launch.plan.run_dir / incident["stacks"] / "node-2").glob("0001-loader0-*.txt"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ("skip", "desync", "all_reduce at step gloo_trainer.py"),
        ("extra-barrier", "desync", "barrier at step gloo_trainer.py"),
        ("gil", "hang", "hold_gil gloo_trainer.py"),
        ("spin", "hang", "spin_for_ever gloo_trainer.py"),
        ("checkpoint", "waiting", "save_checkpoint gloo_trainer.py"),
    ],
)
def test_each_fault_of_a_real_job_is_named(
    order: str, kind: str, words: str, bench_on: Callable[..., Bench], loopback: Any
) -> None:
    launch, folder = gloo(bench_on(loopback(3)), 3)
    (folder / "order.part").write_text(f"{order} 2")
    (folder / "order.part").replace(folder / "order")
    result, incident = judged(launch)
    assert incident["verdict"]["kind"] == kind, incident["verdict"]
    assert [(one["node"], one["rank"]) for one in incident["verdict"]["suspects"]] == [
        ("node-3", 2)
    ]
    assert words in " ".join([str(result.verdict), *incident["verdict"]["evidence"]])
    assert result.failed_rank == 2


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(400)
def test_hang_on_a_node_whose_sshd_is_gone_accuses_that_node_and_stops_it(
    bench_on: Callable[..., Bench], lab: Any
) -> None:
    """The agent's channel is open still, so the stop arrives; nobody can look anew, and that is said."""
    nodes = lab(2)
    launch, folder = gloo(bench_on(nodes), 2)
    (folder / "block-1").touch()
    nodes.nodes[1].kill_sshd()
    result = launch.result(180)
    (incident,) = read_lines(launch.plan.run_dir / INCIDENTS_FILE)
    assert incident["silent"] == ["node-2"]
    assert [one["node"] for one in incident["verdict"]["suspects"]] == ["node-2"]
    assert result.verdict is not None
    assert result.verdict.startswith("HANG: node-2 did not answer, so rank 1 may hang there")
    assert result.leftovers == ()
    assert [line.split(":")[0] for line in result.unconfirmed] == ["node-2"]
    assert tagged(launch.plan.run_id) == []
