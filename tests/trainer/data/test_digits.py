"""The rendered data set: what its clips show, and that the folder appears whole or not at all."""

import csv
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest

from trainer.data import digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "set"
    assert digits.make(out, clips=40, seed=3)
    return out


def read_luma(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)[..., 0].astype(np.float32) / 255


def rows_of(folder: Path, manifest: str = digits.MANIFEST) -> list[dict[str, str]]:
    with (folder / manifest).open(newline="") as file:
        return list(csv.DictReader(file))


def test_splits_are_real_scans_that_do_not_overlap():
    train, labels = digits.scans("train")
    held_out, _ = digits.scans("held_out")
    assert train.shape == (1000, 8, 8)
    assert held_out.shape == (797, 8, 8)
    assert train.min() == 0.0
    assert train.max() == 1.0
    assert set(labels) == set(range(10))


def test_captions_read_back():
    assert len(digits.prompts()) == len(set(digits.prompts())) == 40
    for prompt in digits.prompts():
        assert digits.caption(*digits.parse_caption(prompt)) == prompt
    with pytest.raises(digits.DigitsError):
        digits.parse_caption("a dog")


def test_every_caption_is_as_frequent_and_scans_do_not_repeat_early():
    plan = digits.plan_clips(2000, seed=0)
    labels = digits.scans("train")[1]
    counts = Counter((int(labels[scan]), direction) for scan, direction in plan)
    assert set(counts.values()) == {50}
    assert max(Counter(plan).values()) == 1
    assert digits.plan_clips(2000, seed=0) == plan
    assert digits.plan_clips(2000, seed=1) != plan


@pytest.mark.parametrize("direction", digits.DIRECTIONS)
def test_box_moves_one_pixel_a_frame_and_stays_on_the_canvas(direction):
    places = np.array(digits.trajectory(direction, 9))
    assert (np.diff(places, axis=0) == digits.STEPS[direction]).all()
    assert places.min() == 0
    assert places.max() == digits.CANVAS - digits.BOX
    with pytest.raises(digits.DigitsError, match="positions"):
        digits.trajectory(direction, 10)


@pytest.mark.long
@pytest.mark.parametrize(
    ("split", "manifest"), [("train", digits.MANIFEST), ("held_out", digits.HELD_OUT)]
)
def test_clip_file_shows_the_scan_its_caption_says(folder, split, manifest):
    plan = digits.plan_clips(40, 3, split)
    images, labels = digits.scans(split)
    for row, (scan, direction) in zip(rows_of(folder, manifest), plan, strict=True):
        assert digits.parse_caption(row["text"]) == (labels[scan], direction)
        luma = read_luma(folder / row["path"])
        assert luma.shape == (int(row["num_frames"]), int(row["height"]), int(row["width"]))
        small = luma.reshape(9, 16, 4, 16, 4).mean((2, 4))
        error = np.abs(small - digits.draw(images[scan], direction, 9))
        assert error.mean() < 0.01, row["path"]


def test_a_clip_of_each_caption_is_held_out_and_not_in_the_training_data(folder):
    held_out = rows_of(folder, digits.HELD_OUT)
    assert sorted(row["text"] for row in held_out) == sorted(digits.prompts())
    assert not {row["path"] for row in held_out} & {row["path"] for row in rows_of(folder)}


@pytest.mark.long
def test_same_parameters_are_reused_and_others_replace_the_folder(tmp_path):
    out = tmp_path / "set"
    assert digits.make(out, clips=2, seed=3)
    before = (out / digits.MANIFEST).stat().st_mtime_ns
    assert not digits.make(out, clips=2, seed=3)
    assert (out / digits.MANIFEST).stat().st_mtime_ns == before
    assert digits.make(out, clips=3, seed=3)
    assert len(rows_of(out)) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_failure_half_way_leaves_nothing_and_keeps_the_old_folder(tmp_path, monkeypatch):
    out = tmp_path / "set"
    digits.make(out, clips=2, seed=3)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digits, "encode", fail)
    with pytest.raises(OSError, match="No space"):
        digits.make(out, clips=3, seed=3)
    assert len(rows_of(out)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_foreign_folder_and_odd_sizes_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(digits.DigitsError, match="not empty"):
        digits.make(tmp_path, clips=1, seed=0)
    assert (
        digits.main(["--out", str(tmp_path / "n"), "--clips", "1", "--seed", "0", "--size", "50"])
        == 2
    )
    assert not (tmp_path / "n").exists()
