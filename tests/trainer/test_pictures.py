"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from trainer import pictures
from trainer.runlog import telemetry
from trainer.runlog.validation import Point, final_points


def test_a_runs_losses_become_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = telemetry.Writer(tmp_path)
    for step in (1, 2, 3, 3, 4):  # step 3 was repeated after a resume
        loss = float("nan") if step == 2 else 1 / step
        writer.write(telemetry.StepRecord(step, 4, 0, 8, 64, loss, 1.0, 1e-3, 0.1))
    writer.write(telemetry.Event("stop", "done"))
    writer.close()
    assert pictures.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "loss_curve.png")
    assert imread(tmp_path / "loss_curve.png").shape == (360, 720, 4)


def test_steps_of_an_attempt_that_was_broken_off_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[int, float] = {}

    def draw(_path: Path, losses: dict[int, float], title: str, _validation: list[Point]) -> None:
        drawn.update(losses)
        assert title.endswith("loss, 4 of 9 steps")

    monkeypatch.setattr(pictures, "loss_curve", draw)
    writer = telemetry.Writer(tmp_path)
    for step, loss in ((1, 1.0), (2, 1.0), (3, 50.0), (4, 60.0), (5, 70.0), (3, 1.0), (4, 1.0)):
        if (step, loss) == (3, 1.0):
            writer.write(telemetry.Event("start", "at step 2", {}, 2))
        writer.write(telemetry.StepRecord(step, 9, 0, 8, 64, loss, 1.0, 1e-3, 0.1))
    writer.close()
    pictures.draw_run(tmp_path)
    assert drawn == dict.fromkeys((1, 2, 3, 4), 1.0)


def measured(step: int, model: float, ema: float | None = None) -> telemetry.Event:
    data = {"model": {"loss": model, "clips": 32}}
    return telemetry.Event("validation", "", data | ({"ema": {"loss": ema}} if ema else {}), step)


@pytest.mark.long
def test_losses_of_clips_that_are_not_trained_on_are_drawn_with_those_of_their_average(
    tmp_path: Path,
) -> None:
    losses = dict.fromkeys(range(1, 51), 0.5)
    curves = {"none": [], "model": [Point(0, 0.9, None)], "both": [Point(0, 0.9, 0.8)]}
    images = {}
    for name, points in curves.items():
        pictures.loss_curve(tmp_path / name, losses, "a run", points)
        images[name] = imread(tmp_path / name, format="png")
    assert not np.array_equal(images["none"], images["model"])
    assert not np.array_equal(images["model"], images["both"])


def test_a_measurement_of_an_attempt_that_was_broken_off_does_not_count() -> None:
    def start(step: int) -> telemetry.Event:
        return telemetry.Event("start", "", {}, step)

    unread = telemetry.Event("validation", "none can be read", {}, 17)
    records = [start(0), measured(0, 1.0, 1.0), measured(10, 0.5, 0.6), measured(20, 9.0)]
    records += [start(10), measured(15, 0.4), unread]
    kept = [Point(0, 1.0, 1.0, 32), Point(10, 0.5, 0.6, 32), Point(15, 0.4, None, 32)]
    assert final_points(records) == kept


def test_losses_of_checkpoints_count_unless_their_steps_were_done_again() -> None:
    def beside(step: int, model: float, sealed_s: float) -> telemetry.Event:
        data = {"model": {"loss": model}, "checkpoint": f"epoch0-global_step{step}"}
        return telemetry.Event("validation", "", data, step, sealed_s)

    start = telemetry.Event("start", "", {}, 10, 50.0)
    records = [measured(0, 1.0), start, beside(30, 0.3, 90.0), beside(20, 0.4, 80.0)]
    records += [beside(25, 9.0, 40.0), beside(10, 0.5, 30.0), beside(0, 9.0, 20.0)]
    found = [(point.step, point.model) for point in final_points(records)]
    assert found == [(0, 1.0), (10, 0.5), (20, 0.4), (30, 0.3)]


def test_a_run_without_steps_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main([str(tmp_path)]) == 1
    assert "no recorded step" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_sheet_shows_every_clip_with_square_pixels(tmp_path: Path) -> None:
    red = np.zeros((8, 16, 16, 3), np.uint8)
    red[..., 0] = 255
    pictures.contact_sheet(tmp_path / "sheet.png", [red] * 3, ["$a_", "b", "c" * 200])
    image = imread(tmp_path / "sheet.png")[..., :3]
    pure_red = (image == [1, 0, 0]).all(-1).sum()
    assert pure_red == 3 * 8 * 48 * 48


def test_long_and_large_clips_are_thinned_out(tmp_path: Path) -> None:
    clip = np.zeros((100, 144, 256, 3), np.uint8)
    pictures.contact_sheet(tmp_path / "sheet.png", [clip], ["one"])
    height, width, _ = imread(tmp_path / "sheet.png").shape
    assert height < 144
    assert width < 800
