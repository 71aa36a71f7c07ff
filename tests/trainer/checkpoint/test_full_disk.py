"""Real ranks that run out of room, and harmed checkpoints that a run is told to go on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.checkpoint.saving import FIRST_PART
from tests.trainer.ranks import TINY
from tests.trainer.small_disk import small_disk
from trainer.checkpoint import files as checkpoint
from trainer.data.digits import main as render
from trainer.runlog.telemetry import Event, read
from trainer.weights import checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TWO_RANKS = FIRST_PART.replace("of-00001", "of-00002")


def config(folder: Path, clips: Path) -> list[str]:
    (folder / "tiny.py").write_text(TINY)
    words = ["--data-path", str(clips), "--ckpt-every", "1", "--max-steps", "60", "--lr-schedule"]
    return [str(folder / "tiny.py"), *words, "none"]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    render(["--out", str(folder), "--clips", "96", "--seed", "1"])
    return folder / "digits.csv"


@pytest.mark.parametrize(
    ("options", "said"),
    [("72m", " MB free"), ("900m,nr_inodes=90", "No space left on device")],
    ids=["blocks", "inodes"],
)
def test_a_full_disk_ends_all_ranks_with_a_sentence_and_the_newest_checkpoint_loads(
    tmp_path: Path, clips: Path, options: str, said: str
) -> None:
    words = config(tmp_path, clips)
    with small_disk(tmp_path / "disk", options) as disk:
        ((one, other),) = ranks.train([[*words, "--run-dir", str(disk)]], 2, tmp_path / "first")
        assert (one.code, other.code) == (1, 1)
        assert "error: the checkpoint could not be written: rank 0" in one.err
        assert said in one.err
        assert "checkpoints that were complete before are untouched" in one.err
        assert other.err == ""  # said once
        newest = checkpoints.complete(disk)[-1]
        for path in checkpoints.complete(disk):
            checkpoint.verify(path)
        assert not list(disk.glob(".tmp-epoch*"))
        failed = [e for e in read(disk) if isinstance(e, Event) and e.name == "failed"]
        assert "could not be written" in failed[0].text
        step = int(newest.name.rpartition("step")[2])
        more = ["--load", str(disk), "--max-steps", str(step + 2), "--run-dir", str(tmp_path / "on")]  # fmt: skip
        (done,) = ranks.train([[*words, *more]], 2, tmp_path / "second")
        assert [rank.code for rank in done] == [0, 0], done[0].err
        assert (tmp_path / "on" / f"epoch0-global_step{step + 2}" / "manifest.json").is_file()


def test_harmed_checkpoints_are_refused_by_name_and_the_one_before_is_offered(
    tmp_path: Path, clips: Path
) -> None:
    words = [*config(tmp_path, clips), "--max-steps", "2"]
    harms = {"flipped": "model/model.safetensors", "cut": TWO_RANKS, "gone": "sampler.json"}
    first = [[*words, "--run-dir", str(tmp_path / name)] for name in harms]
    for done in ranks.train(first, 2, tmp_path / "first"):
        assert [rank.code for rank in done] == [0, 0], done[0].err
    for name, file in harms.items():
        path = tmp_path / name / "epoch0-global_step2" / file
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data if name == "flipped" else data[: len(data) // 2])
        if name == "gone":
            path.unlink()
    again = [[*words, "--run-dir", str(tmp_path / f"{n}-on"), "--load", str(tmp_path / n)] for n in harms]  # fmt: skip
    said = {"flipped": "is damaged: its SHA-256 differs", "cut": "bytes, not", "gone": "is missing"}  # fmt: skip
    for name, done in zip(harms, ranks.train(again, 2, tmp_path / "second"), strict=True):
        assert [rank.code for rank in done] == [1, 1]
        assert str(tmp_path / name / "epoch0-global_step2" / harms[name]) in done[0].err
        assert said[name] in done[0].err
        assert f"the newest other checkpoint is {tmp_path / name / 'epoch0-global_step1'}" in done[0].err  # fmt: skip
        assert done[1].err == ""
