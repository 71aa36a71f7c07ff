"""Every benchmark runs to its end on the least work; a new one without `--tiny` fails here."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.bench import tiny

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 400  # a guard, not a measure: machines may be busy
MARK = "CLUSTERCTL_TEST_BENCH"
SUPPORT = {"__init__", "forked", "simulated", "tiny", "watcher"}
# One process runs these: each would start its own to fork ranks from, which takes 4 CPU s.
FORKING = ("save", "tables", "model")
# Those that take 10 s and more, of which FORKING share a start, run in a campaign.
SLOW = (*FORKING, "decoder", "demo", "fanout", "features", "followed", "ras", "serve", "top")
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
    "followed": (
        "pair 1: ", "step time: ", "waiting for its core: ",
        "CPU of the training's node: ",
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
    "ras": ("stacks alone: ", "stacks and RAS: "),
    "sampler": ("row-wise placing: ", "three columns: ", "all columns: ", "times as much"),
    "save": ("demo, colossal: ", "1 GB, colossal: ", "demo, native: ", "1 GB, native: ", "limits: "),
    "serve": ("checkpoints: 1, ", "seal to first step ", "CPU of the sampler "),
    "supervise": ("supervision of 4 nodes x 8 ranks: ",),
    "tables": (
        "read 500 rows of csv: ", "filter 500 rows of csv: ", "read 500 rows of parquet: ",
        "filter 500 rows of parquet: ", "times the time", "all by each rank: ", "read once: ",
        "read and planned once: ",
    ),
    "top": (
        "grid 80x24: ", "grid 200x50: ", "parts of 8 nodes", "fleet of 8: ", "peer, ours, 8 nodes x 8: ",
        "peer, ours: a lost GPU shows after ", "peer, all-smi --ssh-hostfile, not measured: ", "node: ",
        "replay: 2 h written", "replay, every sample: ", "replay, jumps: ",
    ),
    "why": ("error at the end: why ", "error before a flood: why "),
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


def run(mark: str, *words: str) -> tuple[int, str]:
    """Exit code and all that was printed by `python -m tests.bench.WORDS`; no process of it is left."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.{words[0]}", *words[1:]],
        cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", MARK: mark},
    )  # fmt: skip
    try:
        out, _ = child.communicate(timeout=LIMIT_S)
        deadline = time.monotonic() + 10
        while left := processes_with(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    except subprocess.TimeoutExpired:
        end(mark)
        out, _ = child.communicate(timeout=10)
        pytest.fail(f"{words} has not ended after {LIMIT_S} s:\n{out}")
    finally:
        end(mark)
    return child.returncode, out


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of each of FORKING."""
    code, out = run(str(tmp_path_factory.mktemp("forking")), "tiny", *FORKING)
    assert code == 0, out
    *parts, rest = re.split(rf"^{tiny.ENDED} (\w+) (.*)\n", out, flags=re.MULTILINE)
    assert rest == "", out
    return {
        name: (int(code), text)
        for text, name, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ROWS])  # fmt: skip
def test_tiny_run_prints_all_rows(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in FORKING:
        code, out = request.getfixturevalue("forking")[name]
    else:
        code, out = run(str(tmp_path), name, "--tiny")
    missing = re.findall("^not measured: .+", out, re.MULTILINE)
    assert code == (3 if missing else 0), out
    assert tiny.NOTE in out
    assert [row for row in ROWS[name] if row not in out] == [], out
    assert "Traceback" not in out, out
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
