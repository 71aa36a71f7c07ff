"""From a checkpoint and prompts to files, on the real classes with small numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.infer.infer_run import PROMPTS, make_run
from trainer.config import load as configuration
from trainer.data.video.mp4 import read_mp4, write_mp4
from trainer.errors import CheckpointError, ConfigError
from trainer.infer import __main__ as infer
from trainer.infer import files
from trainer.infer.jobs import settings_of
from trainer.models import memory
from trainer.runlog import samples
from trainer.weights import __main__ as weights
from trainer.weights.load import read_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("run"))


def command(run: tuple[Path, Path], folder: Path, *more: str) -> list[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text(f"{PROMPTS[0]}\n\n{PROMPTS[1]}\n{PROMPTS[2]}\n")
    file, checkpoint = run
    words = [
        file,
        "--ckpt-path",
        checkpoint,
        "--prompt-path",
        prompts,
        "--save-dir",
        folder / "out",
    ]
    return [*map(str, words), *more]


def videos(folder: Path) -> list[np.ndarray]:
    return [read_mp4(path) for path in sorted((folder / "out").glob("*.mp4"))]


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


def test_a_run_directory_stands_for_its_newest_checkpoint(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(run[1].parent)
    assert infer.main(words) == 0
    assert len(videos(tmp_path)) == 3


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


def test_ema_is_the_default_and_the_weights_themselves_a_flag(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("ema", []), ("model", ["--weights", "model"])):
        folder = tmp_path / name
        folder.mkdir()
        assert infer.main(command(run, folder, "--cfg-scale", "1", *flags)) == 0
    difference = videos(tmp_path / "ema")[0].astype(int) - videos(tmp_path / "model")[0]
    assert np.abs(difference).mean() > 1


def test_a_run_goes_on_from_its_own_size_when_flags_say_so(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = ["--num-frames", "4", "--image-size", "24", "32", "--num-sampling-steps", "1"]
    assert infer.main(command(run, tmp_path, *flags)) == 0
    assert videos(tmp_path)[0].shape == (4, 24, 32, 3)


def test_expected_failures_are_one_sentence_and_write_nothing(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = command(run, tmp_path)
    wrong_model = [*good, "--model.hidden-size", "64"]
    assert infer.main(wrong_model) == 1
    assert "is not of this model" in capsys.readouterr().err
    nowhere = [str(tmp_path / "nowhere") if word == str(run[1]) else word for word in good]
    assert infer.main(nowhere) != 0
    (tmp_path / "prompts.txt").write_text("\n \n")
    assert infer.main(good) == 2
    assert "has no prompts" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_said_before_or_with_what_stays(
    run: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = command(run, tmp_path)
    in_a_file = [str(run[0] / "out") if word == str(tmp_path / "out") else word for word in words]
    assert infer.main(in_a_file) == 2
    said = capsys.readouterr().err
    assert f"{run[0]} is not a folder" in said
    assert "loading" not in said

    written: list[Path] = []

    def full(path: Path, *rest: object) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write_mp4(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_mp4", full)
    assert infer.main(words) == 1
    said = capsys.readouterr().err
    second = tmp_path / "out" / "sample_0001.mp4"
    assert f"error: {second} cannot be written: No space left on device\n  hint: finished" in said
    assert names(tmp_path) == ["sample_0000.mp4"]
    monkeypatch.undo()
    assert infer.main(words) == 0
    assert "already made: 1 of 3 videos" in capsys.readouterr().err


def test_numbers_that_mean_nothing_are_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--condition-frame-edit", "1.5")) == 2
    said = capsys.readouterr().err
    assert "error: sample.condition_frame_edit must be at least 0 and at most 1; not 1.5" in said
    for flag, value in {"--cfg-scale": "nan", "--aes": "inf"}.items():
        with pytest.raises(SystemExit):
            infer.main(command(run, tmp_path, flag, value))
        assert f"argument {flag}: '{value}' must be a finite number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> dict[Path, np.ndarray]:
    """The frames handed to the encoder by path: what the sampler makes, whatever a codec does to it."""
    frames: dict[Path, np.ndarray] = {}

    def record(path: Path, frames_THW3: np.ndarray, *rest: object) -> None:
        frames[path] = frames_THW3.copy()
        write_mp4(path, frames_THW3, *rest)

    monkeypatch.setattr("trainer.infer.files.write_mp4", record)
    return frames


def test_ranks_share_the_prompts_and_make_the_same_videos_as_one(
    run: tuple[Path, Path],
    tmp_path: Path,
    sampled: dict[Path, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    alone.mkdir()
    shared.mkdir()
    assert infer.main(command(run, alone, "--batch-size", "1")) == 0
    as_rank(monkeypatch, 1, 2)
    assert infer.main(command(run, shared, "--batch-size", "1")) == 0
    assert names(shared) == ["sample_0001.mp4"]  # no sheet of a third of the videos
    assert capsys.readouterr().out == f"{alone / 'out'}\n"  # of rank 0 only
    as_rank(monkeypatch, 0, 2)
    assert infer.main(command(run, shared, "--batch-size", "1")) == 0
    assert names(shared) == names(alone) == ["contact_sheet.png", "index.json", *(f"sample_{i:04d}.mp4" for i in range(3))]  # fmt: skip
    for name in names(alone)[2:]:
        assert np.array_equal(sampled[alone / "out" / name], sampled[shared / "out" / name])


@pytest.mark.slow
def test_torchrun_makes_what_one_process_makes(run: tuple[Path, Path], tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    alone.mkdir()
    shared.mkdir()
    assert infer.main(command(run, alone)) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*launcher, "-m", "trainer.infer", *command(run, shared)], check=True, timeout=170
    )
    assert names(shared) == names(alone)
    for one, other in zip(videos(alone), videos(shared), strict=True):
        assert np.abs(one.astype(int) - other).max() <= 2


def test_a_rank_without_a_world_is_refused(
    run: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert infer.main(command(run, tmp_path)) == 2
    assert "start with torchrun" in capsys.readouterr().err


def test_finished_videos_are_skipped_half_ones_made_anew_and_others_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(run, tmp_path)
    assert infer.main(words) == 0
    paths = [tmp_path / "out" / f"sample_{i:04d}.mp4" for i in range(3)]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-200])  # as a copy that was cut off
    (tmp_path / "out" / ".sample_0001.mp4.77.part").write_bytes(b"of a killed process")
    before = [path.stat().st_mtime_ns for path in paths]
    capsys.readouterr()
    assert infer.main(words) == 0
    said = capsys.readouterr().err
    assert "already made: 2 of 3 videos" in said
    assert "sample_0001.mp4 is incomplete and made again" in said
    after = [path.stat().st_mtime_ns for path in paths]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert len(read_mp4(paths[1])) == 8

    assert infer.main([*words, "--seed", "9"]) == 2
    assert "is another video (3 of 3)" in capsys.readouterr().err
    assert after == [path.stat().st_mtime_ns for path in paths]
    assert infer.main([*words, "--seed", "9", "--overwrite"]) == 0
    assert infer.main([*words, "--seed", "9"]) == 0
    assert "already made: 3 of 3 videos" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob(".*"))


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


def test_a_part_of_the_prompts_gives_the_videos_they_have_in_the_whole(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("all", []), ("part", ["--start-index", "2", "--end-index", "3"])):
        (tmp_path / name).mkdir()
        assert infer.main(command(run, tmp_path / name, *flags)) == 0
    assert names(tmp_path / "part") == ["contact_sheet.png", "index.json", "sample_0002.mp4"]
    assert np.abs(videos(tmp_path / "all")[2].astype(int) - videos(tmp_path / "part")[0]).max() <= 2


def test_a_dry_run_says_what_would_be_made_and_makes_nothing(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer.main(command(run, tmp_path, "--dry-run", "--loop", "2")) == 0
    out = capsys.readouterr().out
    assert "2 clips of 8 frames of 16x16 at 8 fps, 2 steps, guidance 2, seed 1024" in out
    assert out.count("to make") == 3
    assert "sample_0002.mp4  digit one" in out
    assert not (tmp_path / "out").exists()


def test_one_frame_is_a_png_that_is_skipped_too(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(run, tmp_path, "--num-frames", "image", "--upscale", "2")
    assert infer.main(words) == 0
    assert names(tmp_path)[2] == "sample_0000.png"
    assert files.read(tmp_path / "out" / "sample_0000.png").shape == (1, 32, 32, 3)
    assert infer.main(words) == 0
    assert "already made: 3 of 3 videos" in capsys.readouterr().err


def test_a_run_directory_is_config_and_checkpoint(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run[1].parent
    config = configuration.to_dict(configuration.load(run[0]))
    (run_dir / "config.json").write_text(json.dumps({"config": config}))
    words = [str(run_dir), "--prompt", "digit two", "--prompt", "digit one"]
    assert infer.main([*words, "--save-dir", str(tmp_path / "out")]) == 0
    assert len(videos(tmp_path)) == 2


def test_weights_of_another_program_are_read_and_the_missing_ema_is_said(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(read_weights(run[1] / "model"), run[1].parent / "theirs.pth")
    words = command(run, tmp_path)
    words[words.index(str(run[1]))] = str(run[1].parent / "theirs.pth")
    assert infer.main(words) == 0
    assert "has no EMA; using the weights themselves" in capsys.readouterr().err


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


def test_what_cannot_fit_is_one_sentence_and_nothing_is_written(
    run: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert infer.main(command(run, tmp_path, "--num-frames", "400000000000")) == 1
    said = capsys.readouterr().err
    assert "2 videos of 400000000000 frames of 16x16" in said
    assert "GiB are needed, this machine's memory has" in said
    assert "--num-frames" in said
    # What passes the lower bound and still does not fit.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 62)
    assert infer.main(command(run, tmp_path, "--num-frames", "400000000000")) == 1
    said = capsys.readouterr().err
    assert "too much for this machine's memory" in said
    assert not (tmp_path / "out").exists()


def test_help_shows_examples_and_the_mask_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        infer.main(["--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "torchrun --nproc_per_node 8 -m trainer.infer" in out
    assert "loop, reference, reference start, target start" in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num-frames", "3m"], "one of image, 2s"),
        (["--resolution", "999p"], "resolution '999p' is not known"),
        (["--resolution", "240p", "--aspect-ratio", "5:4"], "240p has no ratio '5:4'"),
        (["--resolution", "240p", "--image-size", "16", "16"], "not both"),
        (["--start-index", "3"], "leave none of 3 prompts"),
        (["--reference-path", "nowhere.png"], "the reference nowhere.png cannot be used"),
        (["--mask-strategy", "0"], "asks for reference 0, counted from 0, of 0"),
        (["--reference-path", "a", "--reference-path", "b"], "2 --reference-path for 3 prompts"),
        (["--loop", "2", "--condition-frame-length", "8"], "nothing new would be made"),
        (["--nonsense", "1"], "nonsense"),
    ],
)
def test_wrong_requests_are_one_sentence(
    run: tuple[Path, Path],
    tmp_path: Path,
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        code = infer.main(command(run, tmp_path, *flags))
    except SystemExit as end:  # argparse's own
        code = int(end.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists() or not names(tmp_path)


def test_the_size_must_be_said_somewhere(run: tuple[Path, Path]) -> None:
    config = configuration.load(run[0], ["--sample.num-frames", "none"])
    with pytest.raises(ConfigError, match="size of the videos is not set"):
        settings_of(config)


def test_shards_are_read_through_their_index_and_a_missing_one_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model-00001.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}'
    )
    assert sorted(read_weights(tmp_path)) == ["a", "b"]
    (tmp_path / "model-00002.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"model-00002\.safetensors cannot be read"):
        read_weights(tmp_path)
    (tmp_path / "model-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of 2 shards"):
        read_weights(tmp_path)


def test_a_second_request_into_the_folder_never_replaces_the_firsts_videos(
    run: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other request ends while this one samples."""
    words, others = command(run, tmp_path), []

    def meanwhile(path: Path, *rest: object) -> None:
        write_mp4(path, *rest)  # type: ignore[arg-type]
        if not others:
            monkeypatch.undo()
            others.append(infer.main([*words, "--seed", "9", "--overwrite"]))

    monkeypatch.setattr(files, "write_mp4", meanwhile)
    assert infer.main(words) == 2
    assert others == [0]
    said = capsys.readouterr().err
    assert "sample_0001.mp4 already exists and is another video" in said
    assert infer.main([*words, "--seed", "9"]) == 0
    assert "already made: 3 of 3 videos" in capsys.readouterr().err


def test_a_checkpoint_without_its_end_is_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "run"
    shutil.copytree(run[1].parent, mine)
    checkpoint = mine / run[1].name
    (checkpoint / "manifest.json").unlink()
    shutil.rmtree(checkpoint / "ema")
    words = command(run, tmp_path)
    place = words.index(str(run[1]))
    for mark in (mine / "telemetry.jsonl", checkpoint / "sampler.json", checkpoint / "seen.npy"):
        mark.write_text("")
        aside = mine / f".tmp-{checkpoint.name}"
        for path, said in (
            (checkpoint, "is not complete: it has no manifest.json"),
            (aside, "no complete"),
        ):
            checkpoint.rename(path)
            assert infer.main([*words[:place], str(path), *words[place + 1 :]]) == 1
            assert said in capsys.readouterr().err
            path.rename(checkpoint)
        mark.unlink()
    (mine / "telemetry.jsonl").write_text("")
    assert infer.main([*words[:place], str(mine), *words[place + 1 :]]) == 1
    assert f"{mine} holds no complete checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (mine / "telemetry.jsonl").unlink()  # now it looks like upstream's, which never have a manifest
    assert infer.main([*words[:place], str(checkpoint), *words[place + 1 :]]) == 0


def test_prompts_longer_than_the_encoder_reads_are_named(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(run, tmp_path)
    place = words.index("--prompt-path")
    del words[place : place + 2]
    long = f"|0| {'digit two ' * 5} |1| {'digit one ' * 5}"  # two parts of one prompt
    assert infer.main([*words, "--prompt", "digit one", "--prompt", long]) == 0
    said = capsys.readouterr().err
    assert "1 prompts are longer than the 6 tokens that the model reads and are cut there; the first is prompt 1" in said  # fmt: skip
