"""Saves that hang, fail or find no room: all ranks end together, and nothing is harmed."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint.saving import Rank, Together, names, save
from tests.trainer.small_disk import small_disk
from trainer.checkpoint import files as checkpoint
from trainer.checkpoint.async_saver import Saver
from trainer.checkpoint.staging_buffer import StagingBuffer
from trainer.config.load import Config
from trainer.errors import CheckpointError
from trainer.weights import checkpoints


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
        assert "it needs 79.3 MiB" in str(results[0]), results[0]
        assert str(results[0]) == str(results[1])
        assert names(run_dir) == ["epoch0-global_step1", "latest"]
        checkpoint.verify(first)


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
