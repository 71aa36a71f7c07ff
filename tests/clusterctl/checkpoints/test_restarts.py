"""What plan-checkpoints reads in a run directory of several attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.checkpoints.failures import failures_of
from clusterctl.checkpoints.records import read_run
from tests.clusterctl.runs.attempts_of import Attempts, three_attempts
from trainer.runlog.telemetry import Event


def test_each_attempt_that_was_restarted_is_one_failure(tmp_path: Path) -> None:
    run = three_attempts()
    record = read_run(run.write(tmp_path / "001-x"))
    assert [(a.steps, a.last_step) for a in record.attempts] == [(150, 150), (20, 120), (100, 200)]
    found = failures_of([record], run.at_s)
    assert [one.detect_s for one in found.failures] == [5.0, 60.0]
    assert [one.restart_s for one in found.failures] == [25.0, 29.0]
    assert record.state(run.at_s + 1) == "running"
    assert record.step_s == pytest.approx(1.0)


def test_run_that_restarts_is_running(tmp_path: Path) -> None:
    run = three_attempts()
    run.incident("signal-9")
    assert read_run(run.write(tmp_path / "001-x")).state(run.at_s + 1) == "failed"
    run.restart()
    assert read_run(run.write(tmp_path / "001-x")).state(run.at_s + 1) == "running"
    run.attempt(after=200)
    record = read_run(run.write(tmp_path / "001-x"))
    assert record.state(run.at_s + 1) == "running"
    assert record.last is not None
    assert record.last.last_step == 200  # what is left to train is known before its first step


def test_user_who_stops_a_run_is_no_failure(tmp_path: Path) -> None:
    run = three_attempts()
    run.incident("user-stop")
    run.incidents[-1]["incident"] = "user-stop"
    record = read_run(run.write(tmp_path / "001-x"))
    assert record.state(run.at_s) == "stopped"
    assert len(failures_of([record], run.at_s).failures) == 2


def test_rollback_of_the_guards_is_no_failure(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(50)
    run.telemetry.append(Event("rollback", "back to epoch0-global_step40", {}, 50, run.at_s))
    assert read_run(run.write(tmp_path / "001-x")).state(run.at_s) == "running"
    run.start(40)
    run.train(10)
    record = read_run(run.write(tmp_path / "001-x"))
    assert failures_of([record], run.at_s).failures == ()
    assert record.state(run.at_s) == "running"
