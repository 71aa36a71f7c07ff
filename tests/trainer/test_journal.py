"""The lines of rank 0, and which steps have one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config.load import load
from trainer.journal import Journal
from trainer.runlog.output import configure
from trainer.runlog.telemetry import StepRecord


def record(step: int, steps_total: int = 660) -> StepRecord:
    return StepRecord(step, steps_total, 0, 4, 128, 0.5, 1.0, 1e-3, 0.1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    configure()
    return Journal(tmp_path, load("demo", ["--log-every", "10"]), 0)


def said_by(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]


def test_a_name_is_said_once(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.event("epoch", "epoch 0 begins: 32 clips")
    journal.event("note", "a clip is bad")
    journal.event("data", "dataset.root is another one")
    assert said_by(capsys) == [
        "epoch 0 begins: 32 clips",
        "note: a clip is bad",
        "data: dataset.root is another one",
    ]


@pytest.mark.parametrize("end", ["done", "stopped", "failed"])
def test_the_last_step_of_a_short_start_has_a_line(
    journal: Journal, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    journal.step(record(43))
    journal.step(record(44))
    journal.event("checkpoint", "epoch0-global_step44 saved")
    journal.event(end, f"{end} at step 44")
    journal.event("done", "done at step 44")
    assert said_by(capsys)[1:] == ["step 44/660", f"{end} at step 44", "done at step 44"]


def test_the_last_step_that_was_meant_has_its_line_at_once_and_once(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 10, 13):
        journal.step(record(step, 13))
    journal.event("checkpoint", "epoch0-global_step13 saved")
    journal.event("done", "done at step 13")
    assert said_by(capsys) == [
        "step 1/13",
        "step 10/13",
        "step 13/13",
        "checkpoint: epoch0-global_step13 saved",
        "done at step 13",
    ]
