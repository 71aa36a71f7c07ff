"""wandb's own files, uploaded by wandb's own program to a stand-in of its server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainer.sync.standin_server import serving
from trainer.sync import upload as sync
from trainer.trackers.tracker import About
from trainer.trackers.wandb_run import Wandb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_lines_of_all_starts_arrive_behind_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    run_dir = tmp_path / "001-x"
    run_dir.mkdir()
    told: list[str] = []
    for first, last in ((1, 5), (4, 8)):  # the second from the checkpoint of step 3
        about = About(run_dir, "001-x", first - 1, {"lr": 1})
        sink = Wandb(told.append, about, mode="offline", project="clusterctl")
        for step in range(first, last + 1):
            sink.figures(step, {"loss": 1.0 / step})
        assert sink.close(limit_s=300), told
    with serving() as server, serving() as other:
        own = tmp_path / ".config/wandb/settings"
        own.parent.mkdir(parents=True)
        own.write_text(f"[default]\nbase_url = {server.url}\n")
        # What came with the run directory neither gets the key nor is run.
        (run_dir / "wandb/settings").write_text(f"[default]\nbase_url = {other.url}\n")
        for name in ("wandb/__init__.py", "click.py", "sitecustomize.py"):
            (run_dir / name).write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')\n")
        monkeypatch.chdir(run_dir)
        monkeypatch.setenv("PYTHONPATH", os.pathsep)
        assert sync.main([str(run_dir)]) == 0
        assert other.asked == 0
        assert not (tmp_path / "it-ran").exists()
        steps = [int(server.lines[place]["global_step"]) for place in sorted(server.lines)]
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert told == []
