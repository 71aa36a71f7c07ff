"""A checkpoint is whole or it is not there, and every rank is told the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer import checkpoint
from trainer.checkpoint import Position
from trainer.errors import CheckpointError
from trainer.weights import read_weights


class Together:
    """The collectives of an engine between threads: what checkpoint.save needs of one."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=20)
        self.said: list[str | None] = [None] * world


class Rank:
    """One rank. Its optimizer file is `size` bytes."""

    def __init__(self, group: Together, rank: int, size: int = 1000) -> None:
        self.group, self.rank, self.size = group, rank, size

    def agree(self, failure: str | None) -> list[str]:
        self.group.said[self.rank] = failure
        self.group.barrier.wait()
        said = [f"rank {rank}: {text}" for rank, text in enumerate(self.group.said) if text]
        self.group.barrier.wait()
        return said

    def save(self, directory: Path) -> None:
        (directory / f"rank-{self.rank}").write_bytes(b"x" * self.size)


def weights() -> dict[str, Tensor]:
    return {"w": torch.arange(1000.0)}


def save(run_dir: Path, step: int, *, keep: int = -1, sizes: tuple[int, ...] = (1000,), **more: Any) -> list[Any]:  # fmt: skip
    """Each rank's result: the path, or the error it raised."""
    group = Together(len(sizes))
    results: list[Any] = [None] * len(sizes)

    def work(rank: int) -> None:
        try:
            results[rank] = checkpoint.save(
                run_dir,
                Position(0, step),
                Rank(group, rank, sizes[rank]),  # type: ignore[arg-type]
                **{
                    "weights": weights,
                    "average": weights,
                    "documents": {"a.json": {"n": step}},
                    **more,
                },
                keep=keep,
            )
        except CheckpointError as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def test_a_checkpoint_is_sealed_and_latest_names_it(tmp_path: Path) -> None:
    (path, _) = save(tmp_path, 3, sizes=(10, 10))
    assert path == tmp_path / "epoch0-global_step3"
    assert names(tmp_path) == ["epoch0-global_step3", "latest"]
    files = json.loads((path / "manifest.json").read_text())["files"]
    assert {"model/model.safetensors", "ema/model.safetensors", "optimizer/rank-1", "a.json"} < set(files)  # fmt: skip
    checkpoint.verify(path)
    assert torch.equal(read_weights(path / "model")["w"], weights()["w"])
    assert checkpoint.find(tmp_path) == path
    assert (tmp_path / "latest").read_text() == "epoch0-global_step3\n"


def test_only_the_newest_are_kept_also_when_the_run_went_back(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["epoch0-global_step6", "epoch0-global_step8", "latest"]
    save(tmp_path, 3, keep=2)  # resumed from 2: younger than 8
    assert names(tmp_path) == ["epoch0-global_step3", "epoch0-global_step8", "latest"]
    assert checkpoint.find(tmp_path).name == "epoch0-global_step3"


def test_latest_that_names_nothing_gives_way_to_the_newest_whole_one(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    (tmp_path / "epoch0-global_step4" / "manifest.json").unlink()
    assert checkpoint.find(tmp_path).name == "epoch0-global_step2"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer/rank-0", "a.json"])
@pytest.mark.parametrize(
    ("harm", "said"),
    [(_flip, "is damaged"), (_cut, "bytes, not"), (Path.unlink, "is missing")],
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
        checkpoint.find(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoint.find(tmp_path)
    (tmp_path / "epoch0-global_step5").mkdir()
    with pytest.raises(CheckpointError, match="is not complete"):
        checkpoint.find(tmp_path / "epoch0-global_step5")


def _die(*args: Any, **more: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_the_manifest(path: Path, text: str) -> None:
    if path.name == "manifest.json":
        path.write_text(text[: len(text) // 2])
    _die()


@pytest.mark.parametrize(
    ("moment", "left"),
    [("_seal", 1), ("_write_weights", 1), ("_entry", 1), ("_write_synced", 1), ("_forget_old", 2)],
)
def test_kill_while_saving_leaves_a_whole_one_and_the_next_save_works(
    tmp_path: Path, moment: str, left: int
) -> None:
    save(tmp_path, 1)
    child = os.fork()
    if child == 0:
        setattr(checkpoint, moment, _die_in_the_manifest if moment == "_write_synced" else _die)
        with contextlib.suppress(BaseException):
            save(tmp_path, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert checkpoint.find(tmp_path).name == f"epoch0-global_step{left}"
    checkpoint.verify(checkpoint.find(tmp_path))
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
    "more", [{"sizes": (10, 900_000)}, {"sizes": (10, 10), "weights": lambda: {"w": torch.zeros(300_000)}}],
    ids=["a rank's optimizer file", "the weights"],
)  # fmt: skip
def test_a_full_disk_fails_all_ranks_and_harms_nothing(
    tmp_path: Path, more: dict[str, Any]
) -> None:
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
