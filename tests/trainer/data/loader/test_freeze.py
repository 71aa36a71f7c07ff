"""FFmpeg threads, fork and the collector: what froze the seeds' loader every few hours, on ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.data.clips import write_clip
from trainer.data import digits

# Every decoding process collects all the time.
HARSH = """
import gc, os
if os.environ.get("CLUSTERCTL_ROLE", "").startswith("loader"):
    gc.set_threshold(5, 2, 2)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("freeze")
    digits.make(folder / "set", clips=24, seed=3)
    (folder / "harsh").mkdir()
    (folder / "harsh" / "sitecustomize.py").write_text(HARSH)
    options = {"preset": "ultrafast", "threads": "1", "x264-params": "slices=4"}
    return folder, write_clip(folder / "sliced.mp4", 30, 240, 320, **options)


def rank(made, what: str, limit_s: float) -> list[str]:
    folder, clip = made
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "harsh")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.data.loader.freezing_rank", str(folder / "set" / "digits.csv"), str(clip), what],
        env=environment, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def every_round_is_whole(lines: list[str], count: int) -> None:
    assert [line.split()[0] for line in lines] == [str(number) for number in range(count)]
    for line in lines:
        assert line.split()[1:4] == ["12", "0", "True"], line  # two epochs of 6, none bad, no hang


@pytest.mark.long
def test_loader_beside_threaded_decoders_and_forks_gives_all_its_batches(made):
    every_round_is_whole(rank(made, "2", 170), 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_loader_never_freezes_in_200_rounds(made):
    every_round_is_whole(rank(made, "200", 3500), 200)


@pytest.mark.slow
def test_a_forked_worker_would_freeze(made):
    """The fault itself: where this no longer hangs, PyAV was mended and the campaign proves less."""
    assert rank(made, "control", 60) == ["child hung"]
