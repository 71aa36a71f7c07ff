"""A campaign: a server is killed at random moments and started again, others work beside it."""

from __future__ import annotations

import collections
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.clusterctl.serve import stand_in
from tests.clusterctl.serve.serving import command, serve, videos, wait_for

KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_50_random_moments_no_video_is_missing_twice_or_half(tmp_path: Path) -> None:
    python = stand_in.make(tmp_path, delay_s=0.05)
    steps = tuple(range(10, 10 * KILLS, 10))
    run = stand_in.make_run(tmp_path / "001-run", steps, prompts=6)
    chance = random.Random(seed := 1)
    for number in range(KILLS):
        with command(run, "--python", python, "--compute-only", "--gpus", "none") as child:
            before, more = len(stand_in.made(tmp_path)), chance.randint(0, 5)
            wait_for(lambda: len(stand_in.made(tmp_path)) >= before + more)  # noqa: B023
            time.sleep(chance.uniform(0.0, 0.5))
            child.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            child.communicate(timeout=60)
        assert not _half(run), f"seed {seed}, kill {number}"
    assert serve(run, python=str(python)) == 0
    names = ["contact_sheet.png", *(f"sample_{n:04d}.mp4" for n in range(6))]
    found = videos(run)
    assert len(found) == len(steps)
    assert all([name for name in one if name[0] != "."] == names for one in found.values())
    counted = collections.Counter(line for line in stand_in.made(tmp_path) if line.endswith(".mp4"))
    assert {line for line, count in counted.items() if count > 1} == set()
    assert not list((run / "samples/.serve").glob("[0-9a-f]*"))


def _half(run: Path) -> list[Path]:
    """Finished names that are not whole: each holds its checkpoint and its prompt."""
    return [
        path
        for path in run.glob("samples/run/*/sample_*.mp4")
        if not path.read_text().startswith(path.parent.name) or os.fspath(path)[-4:] != ".mp4"
    ]
