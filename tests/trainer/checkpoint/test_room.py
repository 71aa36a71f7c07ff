"""Whether the disk has room: refused before the first step, warned at a save."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.checkpoint import room as room_of
from trainer.checkpoint.__main__ import main
from trainer.checkpoint.room import Room
from trainer.checkpoint.sizes import CheckpointSize, predicted_size
from trainer.config.load import load
from trainer.errors import CheckpointError
from trainer.runlog.retention import Rules

GB = 10**9
SIZE = CheckpointSize(2 * GB, 4 * GB, 12 * GB, 10**9, 10**9)  # 18 GB, 22 GB while it is written


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "free").write_text(str(1000 * GB))

    def usage(_path: Path) -> object:
        return type("Usage", (), {"free": int((tmp_path / "free").read_text())})()

    monkeypatch.setattr(room_of.shutil, "disk_usage", usage)
    return tmp_path


def with_free(folder: Path, free: int, rules: Rules) -> Room:
    (folder / "free").write_text(str(free))
    return Room(folder, SIZE, rules)


def test_a_run_that_cannot_save_once_ends_before_its_first_step(folder: Path) -> None:
    room = with_free(folder, 20 * GB, Rules(100))
    with pytest.raises(CheckpointError, match=r"needs 20\.6 GiB while .* has 18\.6 GiB free"):
        room.check(0, 1000)


def test_part_of_a_save_that_was_killed_takes_no_room_from_the_next(folder: Path) -> None:
    part = folder / ".tmp-epoch0-global_step5" / "optimizer"
    part.mkdir(parents=True)
    (part / "0").write_bytes(b"x" * 10**6)
    size = CheckpointSize(0, 0, 2 * 10**6, 1, 1)
    (folder / "free").write_text(str(size.total_bytes + size.extra_bytes - 10**6))
    assert Room(folder, size, Rules(100)).check(0, 1) is None
    (part / "0").unlink()
    with pytest.raises(CheckpointError):
        Room(folder, size, Rules(100)).check(0, 1)


def test_a_run_with_nothing_left_to_train_is_not_refused(folder: Path) -> None:
    assert with_free(folder, 0, Rules(100)).check(1000, 1000) is None


def test_a_run_whose_later_checkpoints_do_not_fit_is_warned_with_what_would_fit(
    folder: Path,
) -> None:
    lacks = with_free(folder, 100 * GB, Rules(100)).check(0, 1000)
    assert lacks is not None
    assert "need 171 GiB more by step 1,000" in lacks.text
    assert "93.1 GiB free: keep_checkpoints = 4 fits" in lacks.text
    assert lacks.data == {"free_bytes": 100 * GB, "needed_bytes": 184_067_108_864, "saves": 10}
    kept = Rules(100, keep_checkpoints=4)
    assert with_free(folder, 100 * GB, kept).check(0, 1000) is None


def test_the_alarm_comes_when_the_next_three_do_not_fit(folder: Path) -> None:
    assert with_free(folder, 60 * GB, Rules(100)).look_ahead(100, 1000) is None
    lacks = with_free(folder, 50 * GB, Rules(100)).look_ahead(100, 1000)
    assert lacks is not None
    assert "46.6 GiB free, and the next 3 checkpoints need 54.1 GiB more" in lacks.text
    assert with_free(folder, 50 * GB, Rules(100)).look_ahead(1000, 1000) is None  # the last one


def test_old_checkpoints_that_go_make_room(folder: Path) -> None:
    rules = Rules(100, keep_checkpoints=1)
    assert with_free(folder, 41 * GB, rules).look_ahead(100, 1000) is None
    for step in (100, 200):
        path = folder / f"epoch0-global_step{step}"
        path.mkdir()
        (path / "manifest.json").write_text("{}")
    assert with_free(folder, 23 * GB, rules).look_ahead(300, 1000) is None


def test_a_folder_that_is_gone_is_left_to_the_save(tmp_path: Path) -> None:
    assert Room(tmp_path / "gone", SIZE, Rules(100)).look_ahead(100, 1000) is None


@pytest.mark.long
def test_a_checkpoint_has_18_bytes_a_trained_weight_in_bf16() -> None:
    size = predicted_size(load("stage1"))
    assert 1.1e9 < size.trained < size.parameters < 1.3e9  # the caption embedder is frozen
    assert size.optimizer_bytes == 12 * size.trained
    assert size.ema_bytes == 4 * size.trained
    assert 2 * size.parameters == pytest.approx(size.model_bytes, rel=1e-3)
    wide = predicted_size(load("stage1", ["--dtype", "fp32"]))
    assert wide.model_bytes == pytest.approx(2 * size.model_bytes, rel=1e-3)


@pytest.mark.long
def test_the_size_is_printed_and_a_mistake_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["size", "demo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total_bytes"] == told["model_bytes"] + told["ema_bytes"] + told["optimizer_bytes"]
    assert main(["size", "demo"]) == 0
    assert "total       30.6 MiB" in capsys.readouterr().out
    assert main(["size", "demo", "--model.depht", "3"]) == 2
    assert main(["size", "nothing"]) == 2
