"""A checkpoint is whole or it is not there, and every rank is told the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saved, Saver
from trainer.checkpoint.staging_buffer import StagingBuffer
from trainer.config.load import Config
from trainer.engine.agreement import attempt
from trainer.engine.base import EngineState
from trainer.engine.shards import part_of
from trainer.errors import CheckpointError
from trainer.weights import checkpoints
from trainer.weights.load import read_weights

FIRST_PART = "optimizer/rank-00000-of-00001.safetensors"


class Together:
    """The collectives of an engine between threads: what saving needs of one."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=120)
        self.said: list[Any] = [None] * world


class Rank:
    """One rank. Its optimizer state is `size` bytes."""

    def __init__(self, group: Together, rank: int, size: int = 1000) -> None:
        self.group, self.rank, self.size = group, rank, size
        self.world = len(group.said)
        self.weights: Callable[[], dict[str, Tensor]] = weights

    def gather_objects(self, value: Any) -> list[Any]:
        self.group.said[self.rank] = value
        self.group.barrier.wait()
        said = list(self.group.said)
        self.group.barrier.wait()
        return said

    def gather(self, values: list[float]) -> list[list[float]]:
        return self.gather_objects(list(values))

    def gather_errors(self, failure: str | None) -> list[str]:
        said = self.gather_objects(failure)
        return [f"rank {rank}: {text}" for rank, text in enumerate(said) if text]

    def barrier(self) -> None:
        self.gather_objects(None)

    def run_on_rank0(self, work: Callable[[], Any]) -> Any:
        value, failure = self.gather_objects(attempt(work) if self.rank == 0 else None)[0]
        if failure is not None:
            raise failure
        return value

    is_sharded = True
    device = torch.device("cpu")

    def master_params(self) -> list[tuple[str, Tensor]]:
        return list(self.average().items())

    def state(self) -> EngineState:
        tensors = {"w/exp_avg": torch.zeros(self.size // 4)}
        facts, shapes = {"steps": {}}, {"w": torch.Size([1000])}
        return EngineState(self.rank, self.world, tensors, facts, shapes)

    def weights_to_save(self) -> dict[str, Tensor] | None:
        return None if self.rank else self.weights()

    def average(self) -> dict[str, Tensor]:
        return {"w": part_of(torch.arange(1000.0), self.rank, self.world)}


def weights() -> dict[str, Tensor]:
    return {"w": torch.arange(1000.0)}


def save(run_dir: Path, step: int, *, sizes: tuple[int, ...] = (1000,), model: Callable[[], dict[str, Tensor]] = weights, **options: Any) -> list[Any]:  # fmt: skip
    """Each rank's result: the path, or the error it raised."""
    group = Together(len(sizes))
    results: list[Any] = [None] * len(sizes)

    def work(rank: int) -> None:
        engine = Rank(group, rank, sizes[rank])
        engine.weights = model
        saver = Saver(run_dir, engine, Config(**options))  # type: ignore[arg-type]
        try:
            done = saver.save(0, step, engine.average(), lambda: {"a.json": step})
            (saved,) = [*done, *saver.finish()]
            results[rank] = saved.path
        except CheckpointError as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive()
    return results


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


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


@pytest.mark.parametrize("hangs", ["copy", "write"])
def test_a_rank_whose_save_hangs_ends_all_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """None ends by itself: the others stand in a collective."""
    owner, name = (StagingBuffer, "copy") if hangs == "copy" else (checkpoint, "write_weights")
    plain, calls, over = getattr(owner, name), itertools.count(), threading.Event()

    def first_hangs(*args: Any) -> Any:
        if next(calls) == 0:
            over.wait(60)
        return plain(*args)

    monkeypatch.setattr(owner, name, first_hangs)
    results: list[Any] = [None, None]
    group = Together(2)

    def work(rank: int) -> None:
        engine = Rank(group, rank)
        saver = Saver(tmp_path, engine, Config(process_group_timeout_s=1.0))  # type: ignore[arg-type]
        try:
            saver.save(0, 1, engine.average(), dict)
            saver.hold()
            if hangs == "write" and rank == 1:
                saver._save.fail("No space left on device")  # type: ignore[union-attr]
            saver.advance(row[0] for row in engine.gather([saver.status]))
        except CheckpointError as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    finally:
        over.set()
    said = "was not copied in 0.5 s" if hangs == "copy" else "rank 1: No space left on device"
    assert [said in str(result) for result in results] == [True, True]
    assert all(result.on_all_ranks for result in results)
    assert checkpoints.complete(tmp_path) == []


def test_latest_that_names_nothing_gives_way_to_the_newest_whole_one(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    (tmp_path / "epoch0-global_step4" / "manifest.json").unlink()
    assert checkpoints.find(tmp_path).name == "epoch0-global_step2"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["model/model.safetensors", FIRST_PART, "a.json"])
@pytest.mark.parametrize(
    ("harm", "said"), [(_flip, "is damaged"), (_cut, "bytes, not"), (Path.unlink, "is missing")]
)
def test_a_harmed_file_is_named_and_the_other_checkpoint_offered(
    tmp_path: Path, name: str, harm: Callable[[Path], None], said: str
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    harmed = tmp_path / "epoch0-global_step2"
    harm(harmed / name)
    with pytest.raises(CheckpointError, match=said) as caught:
        checkpoint.verify(harmed)
    assert str(harmed / name) in str(caught.value)
    assert "epoch0-global_step1" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"a": {}}}'])
def test_a_damaged_manifest_is_an_error_not_a_traceback(tmp_path: Path, text: str) -> None:
    (path,) = save(tmp_path, 1)
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.verify(path)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoints.find(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoints.find(tmp_path)
    (tmp_path / "epoch0-global_step5").mkdir()
    with pytest.raises(CheckpointError, match="is not complete"):
        checkpoints.find(tmp_path / "epoch0-global_step5")


def _die(*args: Any, **more: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_the_manifest(path: Path, text: str) -> None:
    if path.name == "manifest.json":
        path.write_text(text[: len(text) // 2])
    _die()


@pytest.mark.parametrize(
    ("moment", "left"),
    [("seal", 1), ("write_weights", 1), ("entries", 1), ("write_synced", 1), ("forget_old", 2)],
)
def test_kill_while_saving_leaves_a_whole_one_and_the_next_save_works(
    tmp_path: Path, moment: str, left: int
) -> None:
    save(tmp_path, 1)
    child = os.fork()
    if child == 0:
        setattr(checkpoint, moment, _die_in_the_manifest if moment == "write_synced" else _die)
        with contextlib.suppress(BaseException):
            save(tmp_path, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert checkpoints.find(tmp_path).name == f"epoch0-global_step{left}"
    checkpoint.verify(checkpoints.find(tmp_path))
    (path,) = save(tmp_path, 2)
    checkpoint.verify(path)
    assert not list(tmp_path.glob(".tmp-*"))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    "more", [{"sizes": (10, 900_000)}, {"sizes": (10, 10), "model": lambda: {"w": torch.zeros(300_000)}}],
    ids=["a rank's optimizer file", "the weights"],
)  # fmt: skip
@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_becomes_full_fails_all_ranks_and_harms_nothing(
    tmp_path: Path, more: dict[str, Any], background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = shutil.disk_usage("/")._replace(free=1 << 40)
    monkeypatch.setattr(
        checkpoint.shutil, "disk_usage", lambda path: plenty
    )  # others fill it later
    more = {**more, "async_io": background}
    with small_disk(tmp_path / "disk", "512k") as run_dir:
        (first, _) = save(run_dir, 1, sizes=(10, 10))
        results = save(run_dir, 2, **more)
        assert [type(result) for result in results] == [CheckpointError, CheckpointError]
        assert all(result.on_all_ranks for result in results)
        assert "could not be written: rank" in str(results[0])
        assert str(results[0]) == str(results[1])
        assert names(run_dir) == ["epoch0-global_step1", "latest"]
        checkpoint.verify(first)
        (again, _) = save(run_dir, 3, sizes=(10, 10))
        checkpoint.verify(again)


def test_a_disk_without_inodes_fails_the_same_way(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200m,nr_inodes=16") as run_dir:
        (first,) = save(run_dir, 1)
        for number in range(10):
            with contextlib.suppress(OSError):
                (run_dir / f"other-{number}").write_text("x")
        (failed,) = save(run_dir, 2)
        assert isinstance(failed, CheckpointError)
        assert "No space left" in str(failed)
        assert checkpoints.find(run_dir) == first
        checkpoint.verify(first)


def test_room_is_looked_for_before_anything_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "70m") as run_dir:
        (first, _) = save(run_dir, 1, sizes=(10, 10))
        results = save(run_dir, 2, sizes=(10, 16_000_000))
        assert "it needs 83.1" in str(results[0]), results[0]
        assert str(results[0]) == str(results[1])
        assert names(run_dir) == ["epoch0-global_step1", "latest"]
        checkpoint.verify(first)


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


@pytest.mark.parametrize("broken", ["copy", "documents", "write"])
def test_a_save_that_fails_behind_the_step_is_raised_on_all_ranks_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (first, _) = save(tmp_path, 1, sizes=(10, 10))

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("no pages left")

    where = {"copy": (StagingBuffer, "copy"), "documents": (checkpoint, "write_documents"), "write": (checkpoint, "write_weights")}  # fmt: skip
    monkeypatch.setattr(*where[broken], fails)
    results = save(tmp_path, 2, sizes=(10, 10))
    assert [type(result) for result in results] == [CheckpointError, CheckpointError]
    assert "MemoryError: no pages left" in str(results[0])
    assert str(results[0]) == str(results[1])
    assert names(tmp_path) == [first.name, "latest"]


@pytest.mark.parametrize("when", ["at its start", "before its first line"])
def test_a_save_without_a_thread_is_raised_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """No memory, or no process number left."""
    plain, calls = threading.Thread.start, itertools.count()

    def start(thread: threading.Thread) -> None:
        if thread.name == "checkpoint" and next(calls) == 0:
            if when == "at its start":
                raise RuntimeError("can't start new thread")
            thread.run = lambda: None  # type: ignore[method-assign]
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    began = time.monotonic()
    results = save(tmp_path, 1, sizes=(10, 10))
    assert time.monotonic() - began < 60
    said = (
        "can't start new thread"
        if when == "at its start"
        else "the thread that writes it has ended"
    )
    assert [said in str(result) for result in results] == [True, True]
    assert names(tmp_path) == []


def test_every_nth_is_kept_beside_the_newest(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step, keep_checkpoints=2, keep_every=3)
    kept = [int(path.name.rpartition("step")[2]) for path in checkpoints.complete(tmp_path)]
    assert kept == [3, 6, 7]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("trials", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_at_random_moments_of_a_save_leaves_the_newest_whole(
    tmp_path: Path, trials: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.checkpoint.killed_saves", str(tmp_path), str(trials), "0"],
        capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert json.loads(done.stdout)["whole"] == trials
