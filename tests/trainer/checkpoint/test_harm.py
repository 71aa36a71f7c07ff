"""Checkpoints that are damaged, or whose writer was killed: named, and the newest whole one stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint.saving import FIRST_PART, save
from trainer.checkpoint import files as checkpoint
from trainer.errors import CheckpointError
from trainer.weights import checkpoints


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


@pytest.mark.long
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
