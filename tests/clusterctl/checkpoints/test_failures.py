"""What is read from run directories: attempts, how they ended, and what each failure took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.checkpoints.failures import FailureRecord, failures_of
from clusterctl.checkpoints.records import SILENT_S, read_run
from tests.clusterctl.checkpoints.run_directories import Run, failing_run


def found(run: Run, after_s: float = 0.0) -> FailureRecord:
    return failures_of([read_run(run.path)], run.at_s + after_s)


@pytest.mark.long
def test_failures_and_their_times_are_measured(tmp_path: Path) -> None:
    record = found(failing_run(tmp_path / "001-x"))
    assert len(record.failures) == 4
    assert record.detect_s == (10.0, 4)
    assert record.restart_s == (60.0, 4)
    assert record.observed_s == pytest.approx(4 * 900, rel=0.01)
    assert record.rank_s == pytest.approx(2 * record.observed_s)
    assert record.texts[0] == "001-x: rank 1 on n1: exit code 1"


def test_a_hang_is_one_failure_though_two_files_tell_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    run.at_s += 600
    run.incident()
    run.fail(30.0, "no step for 600 s")
    (failure,) = found(run).failures
    assert failure.detect_s == 600.0
    assert failure.text == "hang: no step for 600 s"


def test_a_run_that_its_user_stopped_did_not_fail(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    run.fail(1.0, "stopped by the user", code=130)
    assert found(run, 10 * SILENT_S).failures == ()
    assert read_run(run.path).state(run.at_s + 10 * SILENT_S) == "stopped"


def test_an_incident_that_is_a_stop_is_no_failure(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    run.incident("stopped by the user", kind="stop")
    assert found(run, 10 * SILENT_S).failures == ()


@pytest.mark.parametrize(("name", "state"), [("done", "finished"), ("stopped", "stopped")])
def test_a_run_that_ended_well_did_not_fail(tmp_path: Path, name: str, state: str) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    run.event(name)
    assert found(run, 10 * SILENT_S).failures == ()
    assert read_run(run.path).state(run.at_s) == state


def test_a_start_that_took_no_step_is_counted_apart(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.fail(3.0, "rank 0 on n1: exit code 2")
    run.start()
    run.train(5)
    run.event("done")
    record = found(run)
    assert (len(record.failures), record.failed_starts) == (0, 1)


def test_a_run_that_just_went_silent_may_still_run_and_later_has_failed(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    assert read_run(run.path).state(run.at_s + 60) == "running"
    assert found(run, 60).failures == ()
    (failure,) = found(run, SILENT_S + 60).failures
    assert failure.text == "it ended without a record"
    assert failure.detect_s is None


def test_an_attempt_that_was_killed_and_started_again_has_failed(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    run.train(10)
    run.at_s += 100
    run.start(4)
    run.train(1)
    (failure,) = found(run).failures
    assert failure.restart_s == 102.0


@pytest.mark.long
def test_lines_that_are_torn_or_hold_nonsense_are_left_out(tmp_path: Path) -> None:
    run = failing_run(tmp_path / "001-x", times=1)
    good = found(run)
    odd = [
        b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"kind": "step", "step": "x"}', b"[" * 5000,
        b'{"kind": "event", "name": "checkpoint", "step": 3, "data": {"seconds": "long"}}',
        b'{"event": "failure", "time_s": NaN}', b'{"event": "failure", "time_s": true}',
        json.dumps({"kind": "step", "step": 10**30, "steps_total": 1, "epoch": 0, "samples": 1,
                    "tokens": 1, "loss": 1, "grad_norm": 1, "lr": 1, "step_s": 1}).encode(),
    ]  # fmt: skip
    for name in ("telemetry.jsonl", "events.jsonl", "incidents.jsonl"):
        with (run.path / name).open("ab") as file:
            file.write(b"\n".join(odd) + b"\n")
    assert found(run).failures == good.failures


def test_a_folder_without_files_is_a_run_that_waits(tmp_path: Path) -> None:
    record = read_run(tmp_path)
    assert record.state(0.0) == "waiting"
    assert failures_of([record], 0.0) == FailureRecord(runs=1)


def test_the_length_of_an_epoch_is_that_of_the_newest_whole_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "001-x")
    run.start()
    for epoch, steps in enumerate((30, 32, 5)):
        run.train(steps, epoch=epoch)
    assert read_run(run.path).epoch_steps == 32
