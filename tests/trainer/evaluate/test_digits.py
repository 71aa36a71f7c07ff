"""Scores read back from mp4 files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.data import digits
from trainer.data.video.mp4 import read_mp4, write_mp4
from trainer.errors import ConfigError
from trainer.evaluate import digits as evaluate


def real_clip(digit: int, direction: str, frames: int = 8) -> NDArray[np.uint8]:
    """A clip of a scan that the classifier is not fitted to, another one for each caption."""
    scans, labels = digits.scans("train")
    scan = scans[np.flatnonzero(labels == digit)[digits.DIRECTIONS.index(direction)]]
    grey = (digits.draw(scan, direction, frames) * 255).round().astype(np.uint8)
    return grey[..., None].repeat(3, axis=-1)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real clips in the place of samples, one per prompt."""
    folder = tmp_path_factory.mktemp("samples")
    for index, prompt in enumerate(digits.prompts()):
        clip = real_clip(*digits.parse_caption(prompt))
        write_mp4(folder / f"sample_{index:04d}.mp4", clip, fps=8, upscale=4)
    return folder


@pytest.mark.slow
def test_real_clips_score_high(samples: Path) -> None:
    scores = evaluate.summarize(evaluate.read_samples(samples, digits.prompts()))
    assert scores["videos"] == 40
    assert scores["digit_accuracy"] >= 0.95  # of all real clips 0.98 are read right
    assert scores["direction_accuracy"] == 1.0


@pytest.mark.long
def test_scans_that_the_classifier_was_not_fitted_to_are_read_as_well_as_it_says() -> None:
    scans, labels = digits.scans("train")
    seen = [evaluate.seen_digit(digits.draw(scan, "up", 8), "up") for scan in scans]
    right = np.array(seen) == labels
    assert right.mean() == pytest.approx(0.979, abs=0.004)
    assert min(right[labels == digit].mean() for digit in range(10)) > 0.93


@pytest.mark.long
def test_real_clips_under_wrong_prompts_score_low(samples: Path) -> None:
    shifted = digits.prompts()[5:] + digits.prompts()[:5]  # next digit, next direction
    scores = evaluate.summarize(evaluate.read_samples(samples, shifted))
    assert scores["digit_accuracy"] <= 0.1
    assert scores["direction_accuracy"] == 0.0
    assert len(scores["wrong"]) == 40


def test_the_command_prints_one_line_of_json(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(digits.prompts()[:4]) + "\n\n")
    command = ["--samples", str(samples), "--prompts", str(prompts)]
    assert evaluate.main([*command, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    scores = json.loads(out)
    assert (scores["schema"], scores["videos"]) == (1, 4)
    assert scores["direction_accuracy"] == 1.0
    assert evaluate.main(command) == 0
    assert "direction accuracy  1.00" in capsys.readouterr().out


def test_a_missing_video_is_an_error_and_no_lower_score(samples: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*sample_0000\.mp4 for the prompt"):
        evaluate.read_samples(tmp_path, digits.prompts())
    with pytest.raises(ConfigError, match="not a caption of one digit"):
        evaluate.read_samples(samples, ["a horse"])
    (tmp_path / "sample_0000.mp4").write_bytes(b"not a video")
    with pytest.raises(ConfigError, match="cannot be read as a video"):
        evaluate.read_samples(tmp_path, digits.prompts()[:1])


def test_an_empty_or_still_clip_moves_nowhere() -> None:
    assert evaluate.seen_direction(np.zeros((8, 16, 16), np.float32)) is None
    still = np.repeat(digits.draw(digits.scans("train")[0][0], "left", 1), 8, axis=0)
    assert evaluate.seen_direction(still) is None


def test_only_whole_enlargements_of_the_canvas_are_read() -> None:
    with pytest.raises(ValueError, match="not 24x24"):
        evaluate.on_canvas(np.zeros((8, 24, 24, 3), np.uint8))
    assert evaluate.on_canvas(np.full((8, 32, 32, 3), 255, np.uint8)).shape == (8, 16, 16)


def test_an_mp4_comes_back_as_written(tmp_path: Path) -> None:
    clip = real_clip(3, "down")
    path = tmp_path / "clip.mp4"
    write_mp4(path, clip, fps=8, upscale=2)
    back = read_mp4(path)
    assert back.shape == (8, 32, 32, 3)
    assert np.abs(back[:, ::2, ::2].astype(int) - clip).mean() < 2
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]


def test_odd_sizes_are_made_even_and_no_video_is_refused(tmp_path: Path) -> None:
    write_mp4(tmp_path / "odd.mp4", np.zeros((1, 15, 17, 3), np.uint8), fps=23.976)
    assert read_mp4(tmp_path / "odd.mp4").shape == (1, 16, 18, 3)
    with pytest.raises(ValueError, match="frames are"):
        write_mp4(tmp_path / "no.mp4", np.zeros((0, 16, 16, 3), np.uint8), fps=8)
    assert not (tmp_path / "no.mp4").exists()
