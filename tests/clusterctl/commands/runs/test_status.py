"""What `status` says of a run by its files alone; of one that goes on see test_attach.py."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clusterctl.cli import run
from tests.dashboards.runs import write_run
from trainer.runlog.telemetry import Event, Writer

FAILED = "the checkpoint could not be written: rank 0: it needs 12.4 GB"


def tell(run_dir: Path, *events: Event) -> None:
    writer = Writer(run_dir)
    for event in events:
        writer.write(event)
    writer.close()


def test_last_checkpoint_is_shown_and_that_no_save_has_succeeded_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=20)

    def status() -> tuple[str, dict[str, object]]:
        assert run(["status", str(run_dir)]) == 3  # it is unknown how it ended
        lines = capsys.readouterr().out
        assert run(["status", str(run_dir), "--json"]) == 3
        return lines, json.loads(capsys.readouterr().out)

    lines, found = status()
    assert "checkpoint of" not in lines
    step = found["step"]
    assert isinstance(step, dict)
    assert step["step"] == 20
    assert f"\nstep       20 of {step['steps_total']}, loss {step['loss']:.4f}" in lines
    assert (found["checkpoint"], found["save_failed"]) == (None, None)
    then = time.time() - 600
    saved = Event("checkpoint", "in 2 s", {"path": "/x/001-x/epoch0-global_step10"}, 10, then)
    tell(run_dir, Event("save-failed", "earlier", step=5, time_s=then), saved)
    lines, found = status()
    assert "\ncheckpoint of step 10, 10 min 0" in lines
    assert "NOT SAVED" not in lines
    assert found["checkpoint"] == {"name": "epoch0-global_step10", "step": 10, "time_s": then}
    tell(run_dir, Event("save-failed", FAILED, {"next": 30}, 20, time.time()))
    lines, found = status()
    assert f"\nNOT SAVED  {FAILED}\n" in lines
    assert found["save_failed"] == FAILED
    assert found["checkpoint"] is not None
