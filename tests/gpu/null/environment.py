"""The environment in which torch's CUDA build sees the null GPU."""

from __future__ import annotations

import os
from pathlib import Path

from tests.gpu.null.build import LIBRARY

ROOT = Path(__file__).parents[3]
INSIDE = Path(__file__).parent / "inside"


def environment(
    folder: Path, *, devices: int = 1, gib: float | None = None, counters: Path | None = None
) -> dict[str, str]:
    """Variables for a process: `devices` cards of `gib` GiB (an H100's), and the folder that gets
    each process's counters. Programs of compilers are kept in `folder`."""
    folder = folder.absolute()
    found = {
        "LD_PRELOAD": str(folder / LIBRARY),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{INSIDE}:{ROOT}",
        "NULL_GPU_DEVICES": str(devices),
    }
    if gib is not None:
        found["NULL_GPU_GIB"] = str(gib)
    if counters is not None:
        counters.mkdir(parents=True, exist_ok=True)
        found["NULL_GPU_COUNTERS"] = str(counters.absolute())
    return found
