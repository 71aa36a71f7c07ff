"""The folder of wheels, on a machine like the one that lends a card: Python 3.12, torch 2.11."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.pythons import interpreter

ROOT = Path(__file__).parents[2]
# What that machine has, as requirements/wheels.sh says.
THERE = ("torch==2.11.0", "transformers==5.17.*", "numpy", "einops", "safetensors", "pyarrow")
THERE += ("nvidia-ml-py", "psutil")
GROUPS = {
    "correct": "padded",
    "attention": "temporal 8x15x920 products",
    "steps": "kernels",
    "train": "",
    "media": "sampling",
}


def run(*words: str | Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_scripts_run_from_the_wheels_alone(tmp_path: Path) -> None:
    found = interpreter("3.12")
    if found is None:
        pytest.skip("no Python 3.12 here")
    wheels, site, out = tmp_path / "wheels", tmp_path / "site", tmp_path / "out"
    run("bash", "requirements/wheels.sh", wheels, "3.12")
    assert sum(file.stat().st_size for file in wheels.iterdir()) < 64 << 20
    run(found, "-m", "venv", tmp_path / "machine")
    python = tmp_path / "machine" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *THERE)
    wanted = ("--no-index", "--no-deps", "--target", site, *wheels.iterdir())
    run(python, "-m", "pip", "install", "--quiet", *wanted)
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "OMP_NUM_THREADS": "1"}
    tiny = ("--out", out, "--device", "cpu", "--tiny")
    for group, only in GROUPS.items():
        run(python, "-m", "tests.gpu", group, *tiny, "--only", only, **environment)
        rows = json.loads((out / f"{group}.json").read_text())["rows"]
        assert rows
        assert [row for row in rows if "error" in row] == []
    if "triton" in run(python, "-m", "pip", "list"):
        run(python, "-m", "tests.gpu.interpreted", TRITON_INTERPRET="1", **environment)
        run(python, "-m", "tests.gpu.compiled", **environment)
