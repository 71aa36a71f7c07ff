"""The command line of a request, and what it has made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.infer.infer_run import PROMPTS
from trainer.data.video.mp4 import read_mp4


def command(run: tuple[Path, Path], folder: Path, *more: str) -> list[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text(f"{PROMPTS[0]}\n\n{PROMPTS[1]}\n{PROMPTS[2]}\n")
    file, checkpoint = run
    words = [
        file,
        "--ckpt-path",
        checkpoint,
        "--prompt-path",
        prompts,
        "--save-dir",
        folder / "out",
    ]
    return [*map(str, words), *more]


def videos(folder: Path) -> list[np.ndarray]:
    return [read_mp4(path) for path in sorted((folder / "out").glob("*.mp4"))]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
