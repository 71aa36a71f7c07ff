"""Modules that others put beside a run, its data or its user never run: views, launches, data tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.transport.loopback.nodes import LoopbackCluster
from tests.clusterctl.attack.test_planted_modules import ours, plant, planted, run, serving
from tests.dashboards.web.test_server import seen
from tests.trainer.data.clips import write_clip
from trainer.runlog.own_modules import module_command

__all__ = ["planted"]  # a fixture
pytestmark = pytest.mark.slow
CLIPS = 40  # a step of the demo's configuration takes 16 of each rank


def test_served_views_run_nothing(planted: Path) -> None:
    """Each page that is opened starts a process."""
    pytest.importorskip("textual_serve")
    with serving(planted, "top", "--demo") as url:
        asyncio.run(seen(url, b"ml-64-node-"))


@pytest.mark.timeout(600)
def test_launched_ranks_run_nothing_of_their_run_directory_and_workdir(
    planted: Path, tmp_path: Path, loopback: Callable[..., LoopbackCluster]
) -> None:
    """A whole launch over ssh, from the folder, with preflight, into a folder that others filled."""
    cluster = loopback(2)
    write_clip(planted / "0.mp4", 12)
    for number in range(1, CLIPS):
        (planted / f"{number}.mp4").hardlink_to(planted / "0.mp4")
    (planted / "outputs").mkdir()
    plant(planted / "outputs", tmp_path / "it-ran")
    (planted / "manifest.csv").write_text(
        "path,text,num_frames,height,width,fps\n"
        + "".join(f"{number}.mp4,a caption,12,48,64,8\n" for number in range(CLIPS))
    )
    words = ("launch", "demo", "--yes", "--outputs", "outputs", "--device", "cpu", "--hostfile")
    more = ("--", "--dataset.data-path", planted / "manifest.csv", "--max-steps", "2")
    done = run(ours(*words, cluster.hostfile, *more), planted, timeout_s=500)
    assert list(planted.glob("outputs/0*/events.jsonl")), done.stdout + done.stderr[-3000:]
    assert list(planted.glob("outputs/0*/ranks/0.log")), done.stdout + done.stderr[-3000:]


@pytest.mark.timeout(900)
def test_every_tool_for_manifests_runs_nothing(planted: Path) -> None:
    write_clip(planted / "good.mp4", 12)
    (planted / "clips.csv").write_text("path,text\ngood.mp4,a caption\n")
    probed = run(module_command("trainer.data", "probe", "clips.csv", "m.csv"), planted)
    assert probed.returncode == 0, probed.stderr
    words = """check m.csv c.csv|filter m.csv f.csv --where num_frames>1|merge m.csv m.csv g.csv
        |difference m.csv f.csv d.csv|intersect m.csv f.csv i.csv|dedupe m.csv u.csv|convert m.csv m.parquet
        |stats m.csv demo|shard m.csv shards"""
    for line in words.split("|"):
        done = run(module_command("trainer.data", *line.split()), planted)
        assert "Traceback" not in done.stderr, (line, done.stderr)
