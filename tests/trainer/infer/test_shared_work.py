"""Requests in parts: ranks, parts of a list, and what an earlier request has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.infer.command_line import as_rank, command, names, videos
from trainer.data.video.mp4 import read_mp4, write_mp4
from trainer.errors import CheckpointError
from trainer.infer import __main__ as infer
from trainer.infer import files
from trainer.weights.load import read_weights


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_part_of_the_prompts_gives_the_videos_they_have_in_the_whole(
    run: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, flags in (("all", []), ("part", ["--start-index", "2", "--end-index", "3"])):
        (tmp_path / name).mkdir()
        assert infer.main(command(run, tmp_path / name, *flags)) == 0
    assert names(tmp_path / "part") == ["contact_sheet.png", "index.json", "sample_0002.mp4"]
    assert np.abs(videos(tmp_path / "all")[2].astype(int) - videos(tmp_path / "part")[0]).max() <= 2


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


@pytest.mark.long
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
