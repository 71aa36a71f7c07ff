"""Where torch keeps compiled programs: in a folder that no other user could have made."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from trainer.errors import EngineError
from trainer.models import compiling
from trainer.models.compiling import (
    CACHE_VARIABLE,
    KERNELS_VARIABLE,
    MOST_PROGRAMS,
    around_recomputed,
    compile_each,
    keep_kernels_private,
    keep_programs_private,
    on_views,
)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's temporary folder, and a home."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / ".cache").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "")  # so that it is put back
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(inductor, "cpp_cache_precompile_headers", True)
    return shared


@pytest.mark.long
def test_compiled_programs_are_kept_in_a_folder_of_this_user_alone(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "require_compiler", lambda device: None)
    compile_each([nn.Linear(1, 1)])
    folder = places / f"torch-compile-{os.getuid()}"
    assert os.environ[CACHE_VARIABLE] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not inductor.cpp_cache_precompile_headers  # torch keeps them in its own folder
    monkeypatch.setenv(CACHE_VARIABLE, default_cache_dir())  # as torch sets it at some imports
    assert keep_programs_private() == str(folder)  # the next run finds it again


def test_users_own_choice_counts(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "/scratch/me")
    assert keep_programs_private() == "/scratch/me"
    assert list(places.iterdir()) == []


def planted_link(path: Path) -> None:
    (path.parent / "theirs").mkdir()
    path.symlink_to(path.parent / "theirs")


def planted_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("plant", [planted_link, planted_folder, Path.touch])
def test_folder_that_another_user_has_planted_is_not_used(places: Path, plant) -> None:
    plant(places / f"torch-compile-{os.getuid()}")
    folder = Path(keep_programs_private())
    assert folder.parent == places.parent / ".cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder away, which root alone can")
def test_folder_of_another_user_is_not_used(places: Path) -> None:
    folder = places / "torch-compile-0"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert Path(keep_programs_private()).parent == places.parent / ".cache"


def test_a_home_without_cache_gets_one_where_the_temporary_folders_name_is_taken(
    places: Path,
) -> None:
    (places / f"torch-compile-{os.getuid()}").touch()
    cache = places.parent / ".cache"
    cache.rmdir()
    assert Path(keep_programs_private()).parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_user_without_a_home_is_told_of_the_temporary_folder(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = places / f"torch-compile-{os.getuid()}"
    taken.touch()
    monkeypatch.delenv("HOME")

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(EngineError, match=f"{taken} is not a folder of this user's alone$"):
        keep_programs_private()


def test_no_safe_place_is_said_and_nothing_is_compiled(places: Path) -> None:
    places.chmod(0o777)  # without the sticky bit anybody can rename our folder
    home = places.parent / ".cache"
    home.rmdir()
    home.touch()
    with pytest.raises(EngineError, match=r"no place for what torch\.compile makes") as caught:
        keep_programs_private()
    assert f"what is in {places}; {home}: File exists" in str(caught.value)
    assert caught.value.hint == "TORCHINDUCTOR_CACHE_DIR=FOLDER, one that is yours"
    assert CACHE_VARIABLE not in os.environ


def test_kernels_are_kept_beside_compiled_programs(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "")
    kept = places / f"torch-compile-{os.getuid()}" / "triton"
    assert keep_kernels_private() == os.environ[KERNELS_VARIABLE] == str(kept)
    assert keep_kernels_private() == str(kept)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    monkeypatch.setenv(KERNELS_VARIABLE, "")
    monkeypatch.setenv(CACHE_VARIABLE, "/scratch/me")
    assert keep_kernels_private() == "/scratch/me/triton"
    monkeypatch.setenv(KERNELS_VARIABLE, "/scratch/kernels")
    assert keep_kernels_private() == "/scratch/kernels"


def test_recomputed_blocks_may_make_as_many_programs_in_a_thread_of_the_backward_pass() -> None:
    """torch 2.13 keeps its settings by thread, and CUDA's backward pass has one of its own."""
    compile_each([nn.Linear(1, 1)], "eager")
    found = []

    def backward() -> None:
        _, again = around_recomputed()
        with again:
            found.append(dynamo.recompile_limit)
            found.append(dynamo.fail_on_recompile_limit_hit)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert found == [MOST_PROGRAMS, True]


def test_inputs_of_a_recomputed_block_are_views_each_time() -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor, size: int, mask: torch.Tensor) -> list[bool]:
            assert size == 3
            return [x._is_view(), mask._is_view()]

    x, mask = torch.ones(2, requires_grad=True), torch.ones(2)
    assert on_views(Block())(x, 3, mask) == [True, False]
