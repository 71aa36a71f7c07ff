"""Figures of videos: known values of made-up frames, and what the command says of real files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainer.data.video.mp4 import write_mp4
from trainer.evaluate.__main__ import main
from trainer.evaluate.figures import colourfulness, flicker, luma, measure, sharpness
from trainer.runlog import samples, video_figures
from trainer.runlog.samples import Samples, Video

SAMPLES = Samples("epoch0-global_step1000", 1000, 0, "ema", "low4s", "", 8.0, 8, 32, 32, ())


def grey(levels: list[float], side: int = 32) -> np.ndarray:
    """Frames of one brightness each."""
    return np.stack([np.full((side, side, 3), round(255 * level), np.uint8) for level in levels])


def test_figures_of_frames_that_are_known() -> None:
    still = measure(grey([0.4] * 4))
    assert still["brightness"] == pytest.approx(0.4, abs=0.003)
    assert still["colourfulness"] == pytest.approx(0, abs=1e-4)
    assert (still["frozen"], still["black"], still["stillness"]) == (1.0, 0.0, 1.0)
    assert still["motion"] == still["flicker"] == still["sharpness"] == 0.0
    assert measure(grey([0.05, 0.4]))["black"] == 0.5
    assert measure(grey([0.4]))["brightness"] == still["brightness"]
    assert "motion" not in measure(grey([0.4]))
    with pytest.raises(ValueError, match="no frame"):
        measure([])


def test_a_fade_does_not_flicker_and_jumps_do() -> None:
    assert measure(grey([0.2, 0.4, 0.6, 0.8]))["flicker"] == pytest.approx(0, abs=1e-6)
    assert measure(grey([0.2, 0.6, 0.2, 0.6]))["flicker"] == pytest.approx(0.4, abs=1e-6)
    assert flicker([0.1, 0.9]) == 0.0


def test_colour_sharpness_and_motion_follow_their_formulas() -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 200
    # One colour: no deviations; rg = 200, yb = 100.
    assert colourfulness(red) == pytest.approx(0.3 * np.hypot(200, 100), rel=1e-5)
    assert float(luma(red).mean()) == pytest.approx(0.299 * 200 / 255, rel=1e-5)
    board = (np.indices((8, 8)).sum(0) % 2).astype(np.float32)
    # Every inner pixel differs from its four neighbours by 255: +-1020 in equal numbers.
    assert sharpness(board) == pytest.approx(1020.0**2)
    moving = grey([0, 0], side=10)
    moving[1, 0, :5] = 255  # 5 of 100 pixels
    found = measure(moving)
    assert found["motion"] == pytest.approx(1.0)
    assert found["stillness"] == pytest.approx(0.95)
    assert found["frozen"] == 0.0


def sampled(run: Path, step: int, level: float) -> Path:
    """A checkpoint's folder with a moving video and one that is black."""
    folder = run / "samples" / f"epoch0-global_step{step}"
    folder.mkdir(parents=True)
    frames = grey([level] * 4)
    for at, frame in enumerate(frames):
        frame[4 * at : 4 * at + 4, :16] = 255
    write_mp4(folder / "a.mp4", frames, 8.0)
    write_mp4(folder / "b.mp4", grey([0.0] * 4), 8.0)
    rows = (Video("a.mp4", "a cat", 0, 0, 1), Video("b.mp4", "a dog", 1, 0, 1))
    samples.write(folder, replace(SAMPLES, step=step, videos=rows))
    return folder


def test_checkpoints_of_a_run_are_measured_once_and_their_drift_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [sampled(tmp_path, 1000 * n, 0.3 + 0.1 * n) for n in (1, 2, 3)]
    assert main(["videos", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in found["folders"]] == [1000, 2000, 3000]
    assert found["folders"][0]["black"] == ["b.mp4"]
    # Of two videos, one of them always black, and not in the bright bar.
    assert found["brightness_per_1000_steps"]["low4s"] == pytest.approx(0.05 * 15 / 16, abs=0.004)
    assert "CLIP score and FVD are not measured" in found["not_measured"]

    measured = video_figures.read(folders[0])
    assert measured["b.mp4"].flag == "black"
    written = (folders[0] / video_figures.FILE).stat().st_mtime_ns
    (folders[1] / "a.mp4").write_bytes(b"torn")
    (folders[2] / "b.mp4").unlink()
    assert main(["videos", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert (folders[0] / video_figures.FILE).stat().st_mtime_ns == written
    assert f"{folders[0] / 'b.mp4'}: nearly black" in said
    assert f"{folders[1] / 'a.mp4'}: not measured: it " in said
    assert f"{folders[2] / 'b.mp4'}: not measured: it is missing" in said
    assert set(video_figures.read(folders[1])) == {"b.mp4"}


def test_a_folder_of_videos_needs_no_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mp4(tmp_path / "x.mp4", grey([0.4] * 2), 8.0)
    assert main(["videos", str(tmp_path)]) == 0
    assert not (tmp_path / video_figures.FILE).exists()
    assert main(["videos", str(tmp_path / "missing")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["videos", str(tmp_path / "empty")]) == 2
    assert "has no videos" in capsys.readouterr().err
