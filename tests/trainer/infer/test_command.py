"""From a checkpoint and prompts to files, on the real classes with small numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.infer.command_line import command, names, videos
from tests.trainer.infer.infer_run import PROMPTS
from trainer.config import load as configuration
from trainer.infer import __main__ as infer
from trainer.infer import files
from trainer.runlog import samples
from trainer.weights import __main__ as weights
from trainer.weights.load import read_weights


@pytest.mark.long
def test_every_prompt_becomes_a_video_and_a_place_on_the_sheet(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--upscale", "4")) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "out")
    assert "prompts.txt left out: 1\n" in said.err
    assert "3 videos in" in said.err
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["contact_sheet.png", "index.json", *(f"sample_{i:04d}.mp4" for i in range(3))]
    assert (tmp_path / "out" / "contact_sheet.png").read_bytes()[:4] == b"\x89PNG"
    assert all(video.shape == (8, 64, 64, 3) for video in videos(tmp_path))


@pytest.mark.long
def test_the_index_says_what_the_folder_holds_and_parts_of_a_list_are_joined(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    words = command(run, tmp_path, "--upscale", "2", "--num-sample", "2", "--preset-name", "small")
    assert infer.main([*words, "--start-index", "1"]) == 0
    first = samples.read(tmp_path / "out")
    assert first.checkpoint == "epoch0-global_step7"
    assert (first.epoch, first.step, first.weights, first.preset) == (0, 7, "ema", "small")
    assert (first.fps, first.frames, first.height, first.width) == (8.0, 8, 32, 32)
    assert first.settings == "8 frames of 16x16 at 8 fps, 2 steps, guidance 2, seed 1024"
    assert [video.index for video in first.videos] == [1, 1, 2, 2]
    assert infer.main([*words, "--end-index", "1"]) == 0
    both = samples.read(tmp_path / "out")
    assert both.videos[2:] == first.videos
    assert both.videos[1] == samples.Video("sample_0000-1.mp4", PROMPTS[0], 0, 1, 1024)

    # A start that finds all finished writes an index that was lost.
    (tmp_path / "out" / samples.INDEX).unlink()
    assert infer.main([*words, "--weights", "model", "--dry-run"]) == 2  # other videos are there
    assert infer.main(words) == 0
    assert samples.read(tmp_path / "out") == both


@pytest.mark.long
def test_a_video_depends_on_the_seed_and_its_place_but_not_on_the_batch(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    made = {}
    for name, flags in {
        "one": ["--seed", "1"],
        "alone": ["--seed", "1", "--batch-size", "1"],
        "other": ["--seed", "2"],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        assert infer.main(command(run, folder, *flags)) == 0
        made[name] = videos(folder)
    for one, alone, other in zip(made["one"], made["alone"], made["other"], strict=True):
        assert np.abs(one.astype(int) - alone).max() <= 2  # another batch, other rounding
        assert np.abs(one.astype(int) - other).mean() > 5
    assert np.abs(made["one"][0].astype(int) - made["one"][2]).mean() > 5  # the same prompt twice


@pytest.mark.long
def test_a_run_directory_stands_for_its_newest_checkpoint(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(run[1].parent)
    assert infer.main(words) == 0
    assert len(videos(tmp_path)) == 3


@pytest.mark.long
def test_weights_from_elsewhere_use_the_text_encoder_of_the_run_named(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run[1].parent
    elsewhere = tmp_path / "converted" / "m.safetensors"
    assert weights.main(["convert", str(run[1]), str(elsewhere)]) == 0
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(elsewhere)
    assert infer.main(words) == 2
    said = capsys.readouterr().err
    assert f"no text_encoder folder in {elsewhere.parent}" in said
    assert "give the run directory" in said
    assert not (tmp_path / "out").exists()

    config = configuration.to_dict(configuration.load(run[0]))
    of_run = tmp_path / "of_run"
    shutil.copytree(run_dir, of_run)
    (of_run / "config.json").write_text(json.dumps({"schema": 1, "config": config}))
    for named in (of_run, of_run / "config.json"):
        assert infer.main([str(named), *words[1:], "--overwrite"]) == 0
    mine, theirs = tmp_path / "mine", tmp_path
    mine.mkdir()
    assert infer.main(command(run, mine)) == 0
    for one, other in zip(videos(mine), videos(theirs), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.long
def test_ema_is_the_default_and_the_weights_themselves_a_flag(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("ema", []), ("model", ["--weights", "model"])):
        folder = tmp_path / name
        folder.mkdir()
        assert infer.main(command(run, folder, "--cfg-scale", "1", *flags)) == 0
    difference = videos(tmp_path / "ema")[0].astype(int) - videos(tmp_path / "model")[0]
    assert np.abs(difference).mean() > 1


@pytest.mark.long
def test_a_run_goes_on_from_its_own_size_when_flags_say_so(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = ["--num-frames", "4", "--image-size", "24", "32", "--num-sampling-steps", "1"]
    assert infer.main(command(run, tmp_path, *flags)) == 0
    assert videos(tmp_path)[0].shape == (4, 24, 32, 3)


@pytest.mark.long
def test_samples_of_a_prompt_differ_and_the_first_is_what_one_sample_gives(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("one", []), ("two", ["--num-sample", "2"])):
        (tmp_path / name).mkdir()
        assert infer.main(command(run, tmp_path / name, *flags)) == 0
    assert names(tmp_path / "two")[2:4] == ["sample_0000-0.mp4", "sample_0000-1.mp4"]
    one, two = videos(tmp_path / "one"), videos(tmp_path / "two")
    assert len(two) == 6
    assert np.abs(two[0].astype(int) - two[1]).mean() > 5
    for place, video in enumerate(one):
        assert np.abs(video.astype(int) - two[2 * place]).max() <= 2


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--dry-run", "--loop", "2")) == 0
    out = capsys.readouterr().out
    assert "2 clips of 8 frames of 16x16 at 8 fps, 2 steps, guidance 2, seed 1024" in out
    assert out.count("to make") == 3
    assert "sample_0002.mp4  digit one" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_one_frame_is_a_png_that_is_skipped_too(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(run, tmp_path, "--num-frames", "image", "--upscale", "2")
    assert infer.main(words) == 0
    assert names(tmp_path)[2] == "sample_0000.png"
    assert files.read(tmp_path / "out" / "sample_0000.png").shape == (1, 32, 32, 3)
    assert infer.main(words) == 0
    assert "already made: 3 of 3 videos" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_directory_is_config_and_checkpoint(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run[1].parent
    config = configuration.to_dict(configuration.load(run[0]))
    (run_dir / "config.json").write_text(json.dumps({"config": config}))
    words = [str(run_dir), "--prompt", "digit two", "--prompt", "digit one"]
    assert infer.main([*words, "--save-dir", str(tmp_path / "out")]) == 0
    assert len(videos(tmp_path)) == 2
    capsys.readouterr()
    assert infer.main([*words, "--dry-run"]) == 0  # beside the run, where the gallery looks
    assert f"{run_dir}/samples/sample_0000.mp4" in capsys.readouterr().out


@pytest.mark.long
def test_weights_of_another_program_are_read_and_the_missing_ema_is_said(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(read_weights(run[1] / "model"), run[1].parent / "theirs.pth")
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(run[1].parent / "theirs.pth")
    assert infer.main(words) == 0
    assert "has no EMA; using the weights themselves" in capsys.readouterr().err


@pytest.mark.long
def test_a_negative_prompt_changes_the_video_and_needs_guidance(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, flags in (("without", []), ("with", ["--negative-prompt", "digit two"])):
        (tmp_path / name).mkdir()
        assert infer.main(command(run, tmp_path / name, *flags)) == 0
    one, other = videos(tmp_path / "without")[0], videos(tmp_path / "with")[0]
    assert np.abs(one.astype(int) - other).max() > 2
    words = command(run, tmp_path, "--negative-prompt", "x", "--cfg-scale", "1")
    assert infer.main(words) == 2
    assert "needs guidance" in capsys.readouterr().err


def test_help_shows_examples_and_the_mask_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        infer.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "torchrun --nproc_per_node 8 -m trainer.infer" in out
    assert "loop, reference, reference start, target start" in out
