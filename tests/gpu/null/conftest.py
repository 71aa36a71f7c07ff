"""The null GPU for the campaign, where it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.null.build import LIBRARY
from tests.gpu.null.processes import FOLDER, Card


@pytest.fixture(scope="session")
def null_gpu() -> Path:
    python = FOLDER / "venv" / "bin" / "python"
    if not (FOLDER / LIBRARY).is_file() or not python.exists():
        pytest.skip("there is no null GPU in build/null-gpu: make null-gpu (6 GB of CUDA torch)")
    return FOLDER


@pytest.fixture
def gpu(null_gpu: Path, tmp_path: Path) -> Card:
    return Card(null_gpu, tmp_path)
