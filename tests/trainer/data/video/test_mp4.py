"""Videos are the same bytes in every run and the same pictures on every processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer.data import digits
from trainer.data.video import mp4

TIMES = 20
SHAPES = [
    (8, 16, 16),
    (8, 32, 32),
    (17, 32, 32),
    (8, 128, 128),
    (9, 90, 160),
]  # frames, height, width

INSTRUCTIONS = {"ssse3": "ssse3", "sse4.2": "sse4_2", "avx2": "avx2", "avx512": "avx512bw"}


def processor_flags() -> set[str]:
    """What /proc/cpuinfo names; empty on processors that are not x86."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def pictures(shape: tuple[int, int, int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (*shape, 3)).astype(np.uint8)


def sample(path: Path, shape: tuple[int, int, int]) -> None:
    mp4.write_mp4(path, pictures(shape), 8.0, tags={"title": "a digit"})


def clip(path: Path, shape: tuple[int, int, int]) -> None:
    digits.encode(path, pictures(shape)[..., 0].astype(np.float32) / 255, 1)


def dirty_the_heap(turn: int) -> list[np.ndarray]:
    """Leave freed blocks of many sizes full of values; keep some of them, so that places move."""
    rng = np.random.default_rng(turn)
    blocks = [
        np.full(rng.integers(100, 400_000), rng.choice([0, 3, 127, 200, 255]), np.uint8)
        for _ in range(60)
    ]
    del blocks[::2]
    return blocks


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("write", [sample, clip])
def test_written_again_is_the_same_bytes(
    tmp_path: Path, write: Callable[[Path, tuple[int, int, int]], None], shape: tuple[int, int, int]
) -> None:
    """With x264's lookahead on AVX-512, 20 files of 8 frames of 32x32 were 8 different ones."""
    path, seen = tmp_path / "a.mp4", set()
    for turn in range(TIMES):
        kept = dirty_the_heap(turn)
        write(path, shape)
        seen.add(path.read_bytes())
        del kept
    assert len(seen) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("write", [sample, clip])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_other_processors_write_the_same_pictures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path, tuple[int, int, int]], None],
    shape: tuple[int, int, int],
    instructions: str,
) -> None:
    if INSTRUCTIONS[instructions] not in processor_flags():
        pytest.skip(f"this processor has no {instructions}")  # x264 would use them all the same
    here, there = tmp_path / "here.mp4", tmp_path / "there.mp4"
    write(here, shape)
    monkeypatch.setattr(mp4, "REPRODUCIBLE", f"{mp4.REPRODUCIBLE}:asm={instructions}")
    write(there, shape)
    assert np.array_equal(mp4.read_mp4(here), mp4.read_mp4(there))


def test_first_frame_and_length_survive(tmp_path: Path) -> None:
    frames = np.repeat(np.arange(0, 240, 20, np.uint8), 32 * 32 * 3).reshape(12, 32, 32, 3)
    mp4.write_mp4(tmp_path / "a.mp4", frames, 24.0)
    found = mp4.read_mp4(tmp_path / "a.mp4")
    assert found.shape == frames.shape
    assert np.abs(found.astype(int) - frames).max() <= 3


@pytest.mark.parametrize("fps", [0.01, 0.3, 23.976, 29.97, 1000.0])
def test_any_rate_that_is_allowed_can_be_written(tmp_path: Path, fps: float) -> None:
    mp4.write_mp4(tmp_path / "a.mp4", pictures((3, 16, 16)), fps)
    assert len(mp4.read_mp4(tmp_path / "a.mp4")) == 3


@pytest.mark.parametrize("fps", [0.0, -1.0, 0.0001, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused_before_a_file_is_begun(tmp_path: Path, fps: float) -> None:
    with pytest.raises(ValueError, match="must be at least 1/1001"):
        mp4.write_mp4(tmp_path / "a.mp4", pictures((3, 16, 16)), fps)
    assert not list(tmp_path.iterdir())
