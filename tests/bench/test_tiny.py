"""Every benchmark runs to its end on the least work; a new one without `--tiny` fails here."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.bench import tiny

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 240
MARK = "CLUSTERCTL_TEST_BENCH"
SUPPORT = {"__init__", "forked", "simulated", "tiny", "watcher"}
# What each prints, or names as not measured.
ROWS = {
    "decoder": (
        "keyframe every 12:", "keyframe every 250:", "open-sora ", "lambda ", "pure decoding ",
        "ours ", "ours, area ", "ours, torch ", "x less than lambda", "x pure decoding", " workers, ",
    ),
    "demo": (
        "demo, 2 steps: ", "training incl. start of the ranks: ", "two nodes, ZeRO-2 over gloo: ",
        "one plain process: ", "clips per rank second, two nodes against one process: ",
    ),
    "fanout": ("clusterctl run", "clusterctl library", "clush", "pdsh", "parallel"),
    "features": (
        "encode: ", "on the fly: ", "from cache: ", "from the cache a step takes ",
        "decoding and encoding together: ",
    ),
    "model": ("ours ", "plain ", "products ", "plain / ours: ", "GFLOP/s", "where ours goes: "),
    "payloads": (
        "gpus ", "launch's census ", "preflight's census ", "clock ", "kill, look ", "stop, look ",
        "stacks, no job ", "stacks, one rank ",
    ),
    "preflight": (
        "payload, gpus alone: ", "payload, everything: ",
        "payload, everything and an interpreter: ", "2 nodes: ",
    ),
    "sampler": ("row-wise placing: ", "three columns: ", "all columns: ", "times as much"),
    "save": ("demo, colossal: ", "1 GB, colossal: ", "demo, native: ", "1 GB, native: ", "limits: "),
    "tables": (
        "read 500 rows of csv: ", "filter 500 rows of csv: ", "read 500 rows of parquet: ",
        "filter 500 rows of parquet: ", "times the time", "all by each rank: ", "read once: ",
        "read and planned once: ",
    ),
    "top": (
        "grid 80x24: ", "grid 200x50: ", "parts of 8 nodes", "fleet of 8: ", "node: ",
        "replay: 2 h written", "replay, every sample: ", "replay, jumps: ",
    ),
}  # fmt: skip


def processes_with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def end(mark: str) -> None:
    for process in processes_with(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """In the environment of a benchmark and of all that it starts; none of them outlives the test."""
    yield str(tmp_path)
    end(str(tmp_path))


def run(name: str, mark: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.{name}", "--tiny"],
        cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", MARK: mark},
    )  # fmt: skip
    try:
        out, _ = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        end(mark)
        out, _ = child.communicate(timeout=10)
        pytest.fail(f"{name} has not ended after {LIMIT_S} s:\n{out}")
    return child.returncode, out


@pytest.mark.timeout(LIMIT_S + 60)
# The demo itself runs whole in tests/clusterctl/test_demo.py; its benchmark is two minutes more.
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name == "demo" else []) for name in ROWS])  # fmt: skip
def test_tiny_run_prints_all_rows(name: str, mark: str) -> None:
    code, out = run(name, mark)
    missing = re.findall("^not measured: .+", out, re.MULTILINE)
    assert code == (3 if missing else 0), out
    assert tiny.NOTE in out
    assert [row for row in ROWS[name] if row not in out] == [], out
    assert "Traceback" not in out, out
    deadline = time.monotonic() + 10
    while left := processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    if missing:
        pytest.skip("; ".join(missing))


def test_every_program_has_a_tiny_run() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("*.py")}
    assert files - SUPPORT - {Path(__file__).stem} == set(ROWS)


def test_make_bench_runs_every_program() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "bench"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(re.findall(r"-m tests\.bench\.(\w+)", printed)) == sorted(ROWS)
