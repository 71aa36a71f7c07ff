"""Which checkpoints there are after saves, and what is written while training goes on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterctl.checkpoints.on_disk import checkpoints_in
from clusterctl.remote import payload as ship
from tests.clusterctl.payload.local import LocalConnection
from tests.trainer.checkpoint.saving import Rank, Together, names, save, weights
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saved, Saver
from trainer.checkpoint.staging_buffer import StagingBuffer
from trainer.config.load import Config
from trainer.engine.base import EngineState
from trainer.errors import CheckpointError
from trainer.weights import checkpoints
from trainer.weights.load import read_weights


def test_a_checkpoint_is_sealed_and_latest_names_it(tmp_path: Path) -> None:
    (path, _) = save(tmp_path, 3, sizes=(10, 10))
    assert path == tmp_path / "epoch0-global_step3"
    assert names(tmp_path) == ["epoch0-global_step3", "latest"]
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert {"model/model.safetensors", "ema/model.safetensors", "optimizer/rank-00001-of-00002.safetensors", "a.json"} < set(files)  # fmt: skip
    assert not any("parts" in name for name in files)
    checkpoint.verify(path)
    for folder in ("model", "ema"):
        assert torch.equal(read_weights(path / folder)["w"], weights()["w"])
    assert checkpoints.find(tmp_path) == path
    assert (tmp_path / "latest").read_text() == "epoch0-global_step3\n"


def test_only_the_newest_are_kept_also_when_the_run_went_back(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save(tmp_path, step, keep_checkpoints=2)
    assert names(tmp_path) == ["epoch0-global_step6", "epoch0-global_step8", "latest"]
    save(tmp_path, 3, keep_checkpoints=2)  # resumed from 2: younger than 8
    assert names(tmp_path) == ["epoch0-global_step3", "epoch0-global_step8", "latest"]
    assert checkpoints.find(tmp_path).name == "epoch0-global_step3"


def test_verifying_says_that_it_goes_on_while_it_reads(tmp_path, monkeypatch) -> None:
    """The other ranks wait for it."""
    (path, _) = save(tmp_path, 3, sizes=(10, 10))
    told, plain = threading.Event(), checkpoint.sha256_of

    def slow(file: Path, lives: Callable[[], None]) -> str:
        lives()  # a piece was read, and the next one takes until that was noticed
        assert told.wait(60)
        return plain(file)

    monkeypatch.setattr(checkpoint, "sha256_of", slow)
    checkpoint.verify(path, lives=told.set)
    (path / "a.json").write_text((path / "a.json").read_text()[::-1])
    with pytest.raises(CheckpointError, match=r"a\.json is damaged"):
        checkpoint.verify(path, lives=told.set)


@pytest.mark.long
def test_verifying_ends_at_once_where_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    (path, _) = save(tmp_path, 3, sizes=(10, 10))
    endless = path / "model" / "model.safetensors"
    size = 1 << 40  # of zeros that take no space
    os.truncate(endless, size)
    document = json.loads((path / "manifest.json").read_text())
    document["files"]["model/model.safetensors"]["size"] = size
    (path / "manifest.json").write_text(json.dumps(document))

    def gone() -> None:
        raise ConnectionError("another rank has ended")

    with pytest.raises(ConnectionError):
        checkpoint.verify(path, lives=gone)


def set_times_anew(run_dir: Path) -> None:
    """As `cp -r`, an object store or a restored backup does, here in the order of the names."""
    for number, path in enumerate(sorted(run_dir.glob("epoch*/manifest.json"))):
        os.utime(path, (number, number))


@pytest.mark.long
def test_order_in_which_checkpoints_were_made_survives_a_copy_of_the_run(tmp_path: Path) -> None:
    for step in (100, 1000, 200):  # the run went back to 100
        save(tmp_path, step)
    set_times_anew(tmp_path)
    steps = [100, 1000, 200]
    assert [checkpoints.step_of(path) for path in checkpoints.complete(tmp_path)] == steps
    assert [one.step for one in checkpoints_in(tmp_path)[0]] == steps
    assert as_a_node_sees_it(tmp_path) == [f"epoch0-global_step{step}" for step in steps]
    save(tmp_path, 300, keep_checkpoints=2)
    assert names(tmp_path) == ["epoch0-global_step200", "epoch0-global_step300", "latest"]


@pytest.mark.long
def test_latest_is_the_newest_of_checkpoints_that_have_no_number_yet(tmp_path: Path) -> None:
    for step in (100, 1000):
        save(tmp_path, step)
    for path in tmp_path.glob("epoch*/manifest.json"):
        path.write_text(json.dumps({"schema": 1, "files": json.loads(path.read_text())["files"]}))
    set_times_anew(tmp_path)
    (tmp_path / "latest").write_text("epoch0-global_step100\n")
    found = ["epoch0-global_step1000", "epoch0-global_step100"]
    assert [path.name for path in checkpoints.complete(tmp_path)] == found
    assert as_a_node_sees_it(tmp_path) == found
    assert checkpoints.find(tmp_path).name == found[-1]
    save(tmp_path, 50)  # one with a number is younger than those
    assert checkpoints.complete(tmp_path)[-1].name == "epoch0-global_step50"


def as_a_node_sees_it(run_dir: Path) -> list[str]:
    """What a restart is told."""
    args = {"run_dir": str(run_dir), "timeout_s": 20.0}
    return ship.probe(LocalConnection(), "launch.checkpoints", args, 30)["complete"]


def test_checkpoints_of_a_branch_that_was_left_are_the_oldest_and_go_first(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save(tmp_path, step, keep_checkpoints=2)
    for step in (3, 5):  # resumed from 2
        save(tmp_path, step, keep_checkpoints=2)
    assert names(tmp_path) == ["epoch0-global_step3", "epoch0-global_step5", "latest"]
    (tmp_path / "latest").unlink()
    assert checkpoints.find(tmp_path).name == "epoch0-global_step5"
    save(tmp_path, 4, keep_checkpoints=2)
    (tmp_path / "latest").write_text("gone")
    assert checkpoints.find(tmp_path).name == "epoch0-global_step4"  # the newest, not the highest


@contextlib.contextmanager
def undeletable(folder: Path) -> Iterator[None]:
    """A mount inside: deleting it fails as a file that NFS keeps or an immutable one does."""
    run_dir, mounted = folder.parent, folder / "mounted"
    mounted.mkdir(parents=True, exist_ok=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(mounted)], capture_output=True
    ).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:  # by whatever name it has now
        for path in run_dir.rglob("mounted"):
            subprocess.run(["umount", "-l", str(path)], check=True)


def saved_by(saver: Saver, step: int) -> Saved:
    """A checkpoint by one rank."""
    done = saver.save(0, step, Rank(Together(1), 0).average(), dict)
    (saved,) = [*done, *saver.finish()]
    return saved


@pytest.mark.parametrize(
    "old", ["epoch0-global_step1", ".tmp-epoch0-global_step3", "epoch0-global_step3"],
    ids=["an old one", "left by a killed run", "of the same name"],
)  # fmt: skip
def test_what_cannot_be_deleted_is_a_note_and_the_save_is_good(tmp_path: Path, old: str) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    saver = Saver(tmp_path, Rank(Together(1), 0), Config(keep_checkpoints=2))  # type: ignore[arg-type]
    with undeletable(tmp_path / old):
        saved = saved_by(saver, 3)
        (note,) = saved.notes
        assert (
            note.startswith(f"{old} cannot be deleted and still takes space: ")
            or ".tmp-old-" in note
        )
        checkpoint.verify(saved.path)
        assert checkpoints.find(tmp_path) == saved.path
        # It lost its name, so that half of it is never taken for a checkpoint.
        assert [path.name[-5:] for path in checkpoints.complete(tmp_path)] == ["step2", "step3"]
        # Each save tries again and says it no more, but that it has another name now.
        assert sum(len(saved_by(saver, step).notes) for step in (4, 5, 6)) <= 1
    assert saved_by(saver, 7).notes == ()
    assert names(tmp_path) == ["epoch0-global_step6", "epoch0-global_step7", "latest"]


def test_training_goes_on_while_a_checkpoint_is_copied_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy, may_write = threading.Event(), threading.Event()
    copy, write = StagingBuffer.copy, checkpoint.write_weights

    def copied_late(self: StagingBuffer, *args: Any) -> Any:
        assert may_copy.wait(30)
        return copy(self, *args)

    def written_late(*args: Any) -> Any:
        assert may_write.wait(30)
        return write(*args)

    monkeypatch.setattr(StagingBuffer, "copy", copied_late)
    monkeypatch.setattr(checkpoint, "write_weights", written_late)
    engine = Rank(Together(1), 0)
    saver = Saver(tmp_path, engine, Config())  # type: ignore[arg-type]
    model, average = {"w": torch.zeros(1000)}, engine.average()
    saver.hold()  # nothing to wait for
    engine.weights = lambda: model
    saver.prepare()
    assert saver.save(0, 1, average, lambda: {"a.json": 1}) == []
    assert saver.is_copying  # forward and backward pass
    held = threading.Thread(target=saver.hold)
    held.start()
    assert held.is_alive()
    may_copy.set()
    held.join(30)
    assert not held.is_alive()
    assert not saver.is_copying
    model["w"] += 1  # the update
    average["w"] += 1
    assert saver.advance([saver.status]) == []
    assert checkpoints.complete(tmp_path) == []
    may_write.set()
    (saved,) = saver.finish()
    assert (saved.step, saved.path.name) == (1, "epoch0-global_step1")
    assert read_weights(saved.path / "model")["w"].sum() == 0
    assert torch.equal(read_weights(saved.path / "ema")["w"], torch.arange(1000.0))
    assert saver.finish() == []


@pytest.mark.parametrize("background", [True, False])
def test_weights_that_have_masters_are_written_from_those(tmp_path: Path, background: bool) -> None:
    engine, master = Rank(Together(1), 0), torch.arange(6.0) / 3
    state = EngineState(0, 1, {"w/master": master}, {}, {"w": torch.Size([2, 3])})
    engine.state = lambda: state  # type: ignore[method-assign]
    meta = torch.empty((2, 3), dtype=torch.bfloat16, device="meta")
    saver = Saver(tmp_path, engine, Config())  # type: ignore[arg-type]
    engine.weights = lambda: {"w": meta, "buffer": torch.ones(2)}
    done = saver.save(0, 1, {"w": master}, dict, background=background)
    (saved,) = done or saver.finish()
    found = read_weights(saved.path / "model")
    assert torch.equal(found["w"], master.view(2, 3).bfloat16())
    assert torch.equal(found["buffer"], torch.ones(2))
    assert torch.equal(read_weights(saved.path / "ema")["w"], master.view(2, 3))
    checkpoint.verify(saved.path)


def test_every_nth_is_kept_beside_the_newest(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, keep_checkpoints=2, keep_every=3)
    kept = [int(path.name.rpartition("step")[2]) for path in checkpoints.complete(tmp_path)]
    assert kept == [3, 6, 7]
