"""Videos into the training's run, with a stand-in for wandb: there is no server here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainer.infer import wandb_videos
from trainer.infer.losses import Losses
from trainer.infer.models import Models
from trainer.infer.wandb_videos import NotLogged, log, open_run
from trainer.runlog import samples, validation
from trainer.trackers.wandb_run import known_id


class Stub:
    """What wandb is called with."""

    Settings = SimpleNamespace

    def __init__(self, known: str) -> None:
        self.known, self.inits = known, []  # type: ignore[var-annotated]
        self.logged: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, dict[str, Any]]] = []

    def Api(self, timeout: int) -> Any:
        return self

    def run(self, path: str) -> None:
        if path != self.known:
            raise ValueError(f"Could not find run {path} (404)")

    def init(self, **options: Any) -> Any:
        self.inits.append(options)
        return SimpleNamespace(
            id=options.get("id", "fresh"),
            define_metric=lambda name, **more: self.metrics.append((name, more)),
            log=self.logged.append,
        )

    def Video(self, path: str, caption: str, format: str) -> tuple[str, str]:
        return Path(path).name, caption


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"config": {"wandb_project": "speedrun"}}')
    (tmp_path / "wandb.json").write_text('{"id": "abc123", "online": true}')
    return tmp_path


def a_folder(run_dir: Path) -> Path:
    folder = run_dir / "samples/low4s/epoch0-global_step10"
    folder.mkdir(parents=True)
    videos = [samples.Video(f"sample_000{n}.mp4", f"prompt {n}", n, 0, 1) for n in range(2)]
    for video in videos:
        (folder / video.file).touch()
    facts: dict[str, Any] = {"checkpoint": folder.name, "step": 10, "epoch": 0, "weights": "ema"}
    facts |= {"preset": "low4s", "settings": "", "fps": 24.0, "frames": 102, "height": 8}
    samples.write(folder, samples.Samples(**facts, width=8, videos=tuple(videos)))
    return folder


def test_videos_go_into_the_trainings_run_with_a_step_of_their_own(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub("speedrun/abc123")
    monkeypatch.setitem(sys.modules, "wandb", stub)
    run = open_run(run_dir, "")
    (options,) = stub.inits
    assert (options["id"], options["project"]) == ("abc123", "speedrun")
    settings = options["settings"]
    assert (settings.mode, settings.x_primary) == ("shared", False)
    assert settings.x_update_finish_state is False
    folder = a_folder(run_dir)
    log(run, folder)
    assert ("samples/low4s/*", {"step_metric": "samples/low4s/step"}) in stub.metrics
    assert stub.logged == [
        {
            "samples/low4s/0000": ("sample_0000.mp4", "prompt 0"),
            "samples/low4s/0001": ("sample_0001.mp4", "prompt 1"),
            "samples/low4s/step": 10,
        }
    ]
    assert json.loads((folder / wandb_videos.LOGGED).read_text())["run"] == "abc123"


def test_a_run_that_is_gone_is_one_sentence_and_no_other_is_made(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub("speedrun/other")
    monkeypatch.setitem(sys.modules, "wandb", stub)
    with pytest.raises(NotLogged, match="run abc123 is gone from W&B"):
        open_run(run_dir, "")
    assert stub.inits == []
    with pytest.raises(NotLogged, match="is no id of a run"):
        open_run(run_dir, "../x")
    assert open_run(run_dir, "new").id == "fresh"


def test_offline_and_missing_runs_get_nothing(run_dir: Path) -> None:
    (run_dir / "wandb.json").write_text('{"id": "abc123", "online": false}')
    with pytest.raises(NotLogged, match="is offline"):
        open_run(run_dir, "")
    (run_dir / "wandb.json").unlink()
    with pytest.raises(NotLogged, match="has no run in W&B"):
        open_run(run_dir, "")


def test_without_wandb_it_says_so(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(NotLogged, match="W&B is not installed"):
        open_run(run_dir, "")


def test_losses_are_logged_as_the_training_logs_its_own(run_dir: Path) -> None:
    figures = validation.figures_of({0: ("16px 8f", [[0.5, 0.25]])}, [250.0, 750.0])
    event = validation.event_of(10, figures, figures, 1.5, 5.0, checkpoint="epoch0-global_step10")
    folder = run_dir / "samples/validation/epoch0-global_step10"
    folder.mkdir(parents=True)
    (folder / validation.LOSSES).write_text(json.dumps({"event": asdict(event)}))
    run = Stub("").init(id="abc123")
    logged: list[dict[str, float]] = []
    run.log = logged.append
    log(run, folder)
    (found,) = logged
    assert found["global_step"] == 10
    assert found["validation/model/loss"] == found["validation/ema/loss"] == 0.375
    assert found["validation/ema/16px 8f/t750"] == 0.25
    assert json.loads((folder / ".wandb.json").read_text())["run"] == "abc123"


def test_a_link_in_a_run_directory_says_nothing_about_runs_and_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, run_dir = tmp_path / "outside", tmp_path / "run"
    run_dir.mkdir()
    outside.mkdir()
    (outside / "config.json").write_text('{"config": {"wandb_project": "speedrun"}}')
    (outside / "wandb.json").write_text('{"id": "abc123", "online": true}')
    (outside / validation.LOSSES).write_text('{"event": {"step": 7, "data": {}}, "stamp": [1]}')
    for path in outside.iterdir():
        (run_dir / path.name).symlink_to(path)
    monkeypatch.setitem(sys.modules, "wandb", Stub("speedrun/abc123"))
    with pytest.raises(NotLogged, match=r"wandb\.json cannot be read: .* it is a link"):
        open_run(run_dir, "")
    assert wandb_videos._project(run_dir) is None
    assert known_id(run_dir / "wandb.json") == (None, False)
    with pytest.raises(OSError, match="it is a link"):
        log(SimpleNamespace(log=[].append), run_dir)
    request = {"save_dir": str(run_dir), "stamp": [1]}
    assert not Losses(cast(Models, None)).is_finished(request)
    assert Losses(cast(Models, None)).is_finished(request | {"save_dir": str(outside)})
