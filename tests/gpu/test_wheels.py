"""The folder of wheels, on a machine like the one that lends a card: Python 3.12, torch 2.11."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.gpu.report import is_row, read_lines
from tests.pythons import interpreter

ROOT = Path(__file__).parents[2]
MOST_BYTES = 60 << 20  # of tree and wheels together: 64 MiB may travel
WHEELS_BYTES = 20 << 20  # of them at most
# What that machine has, as requirements/wheels.sh says.
THERE = ("torch==2.11.0", "transformers==5.17.*", "numpy", "einops", "safetensors", "pyarrow")
THERE += ("nvidia-ml-py", "psutil")
# An environment with these that is there already; it is only read.
MACHINE = "TESTS_GPU_MACHINE"
ONLY = ("engines", "correct, eager", "eager", "VAE", "attention", "sampling", "queues", "text")


def run(*words: str | Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked_bytes() -> int:
    names = run("git", "ls-files", "-z").split("\0")
    paths = [ROOT / name for name in names if name]
    return sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink())


def test_the_tree_leaves_room_for_the_wheels() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    assert tracked_bytes() < MOST_BYTES - WHEELS_BYTES


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_scripts_run_from_the_wheels_alone(tmp_path: Path) -> None:
    wheels, site, out = tmp_path / "wheels", tmp_path / "site", tmp_path / "out"
    run("bash", "requirements/wheels.sh", wheels, "3.12")
    size = sum(file.stat().st_size for file in wheels.iterdir())
    assert size < WHEELS_BYTES
    assert size + tracked_bytes() < MOST_BYTES
    machine = Path(os.environ.get(MACHINE, tmp_path / "machine"))
    python = machine / "bin" / "python"
    if not python.exists():
        found = interpreter("3.12")
        if found is None:
            pytest.skip("no Python 3.12 here")
        run(found, "-m", "venv", machine)
        run(python, "-m", "pip", "install", "--quiet", *THERE)
    wanted = ("--no-index", "--no-deps", "--target", site, *wheels.iterdir())
    run(python, "-m", "pip", "install", "--quiet", *wanted)
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "PYTHONNOUSERSITE": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    tiny = ("--out", out, "--device", "cpu", "--tiny")
    run(python, "-m", "tests.gpu", "first", *tiny, "--only", *ONLY, **environment)
    rows = [line for line in read_lines(out / "first-only.jsonl")[0] if is_row(line)]
    assert len(rows) == 9
    assert [row for row in rows if row["result"] != "measured"] == []
    bench = ("-m", "trainer.bench", "demo", "--device", "cpu", "--steps", "1", "--json")
    assert '"result": "measured"' in run(python, *bench, **environment)
    if "triton" in run(python, "-m", "pip", "list"):
        run(python, "-m", "tests.gpu.interpreted", TRITON_INTERPRET="1", **environment)
        run(python, "-m", "tests.gpu.compiled", **environment)
