"""The sampler that stays: the same files as the command, checkpoint after checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.infer.infer_run import PROMPTS, make_run
from trainer.config import load as configuration
from trainer.config.load import to_dict
from trainer.errors import CheckpointError, ConfigError
from trainer.infer import __main__ as infer
from trainer.infer import warm
from trainer.infer.models import Models
from trainer.runlog.atomic_file import sha256_of

NAME = "epoch0-global_step7"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a second checkpoint, whose weights differ."""
    folder = tmp_path_factory.mktemp("run")
    file, checkpoint = make_run(folder)
    document = {"schema": 1, "config": to_dict(configuration.load(file))}
    (folder / "config.json").write_text(json.dumps(document, default=str))
    later = shutil.copytree(checkpoint, folder / "epoch0-global_step9")
    shutil.copytree(later / "model", later / "ema", dirs_exist_ok=True)
    for one in (checkpoint, later):
        files = {
            str(path.relative_to(one)): {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in one.rglob("*.safetensors")
        }
        (one / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
    return folder


def ask(models: Models, op: str, run: Path, place: Path, **more: Any) -> list[Mapping[str, Any]]:
    request = {
        "run_dir": str(run),
        "checkpoint": NAME,
        "weights": "ema",
        "preset": "run",
        "own": True,
        "sample": {},
        "upscale": 1,
        "prompts": list(PROMPTS),
        "save_dir": str(place),
        **more.pop("request", {}),
    }
    said: list[Mapping[str, Any]] = []
    warm._OPERATIONS[op]({"id": 1, "request": request, **more}, models, said.append)
    return said


@pytest.mark.long
def test_it_makes_the_files_of_the_command_and_none_twice(run: Path, tmp_path: Path) -> None:
    models = Models(torch.device("cpu"), checked=True)
    place = tmp_path / "warm"
    (look,) = ask(models, "look", run, place)
    assert look["look"]["batch_size"] == 2
    assert [job["finished"] for job in look["look"]["jobs"]] == [False] * 3
    begun, made = ask(models, "make", run, place, first=0, end=2)
    assert (begun, made) == ({"begun": True}, {"made": ["sample_0000.mp4", "sample_0001.mp4"]})
    assert ask(models, "make", run, place, first=0, end=2) == [{"made": []}]
    assert not (place / "contact_sheet.png").exists()
    ask(models, "make", run, place, first=2, end=3)
    assert ask(models, "sheet", run, place) == [{"sheet": True}]
    assert (place / "index.json").is_file()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    words = [str(run), "--ckpt-path", str(run / NAME), "--prompt-path", str(prompts)]
    assert infer.main([*words, "--save-dir", str(tmp_path / "command")]) == 0
    for index in range(3):
        name = f"sample_000{index}.mp4"
        assert (place / name).read_bytes() == (tmp_path / "command" / name).read_bytes()


@pytest.mark.long
def test_encoders_stay_and_weights_change(run: Path, tmp_path: Path) -> None:
    models = Models(torch.device("cpu"), checked=True)
    ask(models, "warm", run, tmp_path)
    encoders = models._encoders
    ask(models, "make", run, tmp_path / "a", first=0, end=1)
    later = {"checkpoint": "epoch0-global_step9"}
    ask(models, "make", run, tmp_path / "b", first=0, end=1, request=later)
    assert models._encoders is encoders
    name = "sample_0000.mp4"
    assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "b" / name).read_bytes()


def test_a_damaged_checkpoint_is_named_and_makes_no_file(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    file = other / NAME / "ema/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    models = Models(torch.device("cpu"), checked=True)
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256 differs"):
        ask(models, "make", other, tmp_path / "out", first=0, end=1)
    assert not list(tmp_path.glob("out/*.mp4"))
    later = {"checkpoint": "epoch0-global_step9"}  # the next one is none the worse for it
    ask(models, "make", other, tmp_path / "out", first=0, end=1, request=later)
    assert list(tmp_path.glob("out/*.mp4"))


def test_a_preset_stands_in_the_place_of_the_runs_settings(run: Path, tmp_path: Path) -> None:
    models = Models(torch.device("cpu"))
    sample = {"num_frames": "2s", "resolution": "144p", "batch_size": 3}
    preset = {"own": False, "sample": sample, "preset": "mine"}
    (look,) = ask(models, "look", run, tmp_path, request=preset)
    assert look["look"]["batch_size"] == 3
    config = warm._config({"run_dir": str(run), **preset})
    assert (config.sample.num_frames, config.sample.image_size) == (51, None)
    with pytest.raises(ConfigError):
        ask(models, "look", run, tmp_path, request={"own": False, "sample": {}})
