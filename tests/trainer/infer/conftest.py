"""A small run with a checkpoint, and frames as the sampler makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainer.infer.infer_run import make_run
from trainer.data.video.mp4 import write_mp4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> dict[Path, np.ndarray]:
    """The frames handed to the encoder by path: what the sampler makes, whatever a codec does to it."""
    frames: dict[Path, np.ndarray] = {}

    def record(path: Path, frames_THW3: np.ndarray, *rest: object) -> None:
        frames[path] = frames_THW3.copy()
        write_mp4(path, frames_THW3, *rest)

    monkeypatch.setattr("trainer.infer.files.write_mp4", record)
    return frames
