"""`python -m trainer.weights`: what it shows, what it writes, and that it writes all or nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.models.stdit_weights import noisy, pixart, small, write_upstream_checkpoint
from trainer.errors import CheckpointError
from trainer.weights import write
from trainer.weights.__main__ import main
from trainer.weights.convert import convert
from trainer.weights.load import load_into
from trainer.weights.write import dtypes_for, write_folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = {name: tensor.clone() for name, tensor in noisy().state_dict().items()}
    average = {name: tensor + 1 for name, tensor in state.items()}
    return write_upstream_checkpoint(tmp_path / "epoch0-global_step5", state, average)


def test_inspect_names_the_model_and_folds_its_blocks(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(checkpoint)]) == 0
    out = capsys.readouterr().out
    count = sum(tensor.numel() for tensor in noisy().parameters())
    assert f"STDiT3: {count:,} parameters in 89 tensors (89 float32)" in out
    assert "checkpoint of Open-Sora, 2 files" in out
    assert "spatial_blocks.[0-1]" in out
    assert "hidden_size 32" in out
    assert "average:" in out


def test_inspect_as_one_document(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["model"] == "STDiT3"
    assert found["shapes_say"]["num_heads"] == 2
    assert found["shapes_say"]["patch_size"] == [1, 2, 2]
    assert found["keys"]["rope.freqs"] == ["float32", 8]
    assert sum(group["tensors"] for group in found["groups"]) == found["tensors"] == 89
    assert found["average"]["whole"] is True


def test_convert_writes_the_average_in_another_dtype(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "m.safetensors"
    assert main(["convert", str(checkpoint), str(target), "--dtype", "bf16"]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(target)
    written, state = load_file(target), noisy().state_dict()
    assert written.keys() == state.keys()
    assert written["t_block.1.weight"].dtype == torch.bfloat16
    assert torch.equal(written["t_block.1.weight"], (state["t_block.1.weight"] + 1).bfloat16())
    assert written["rope.freqs"].dtype == torch.float32  # angles
    plain = ["convert", str(checkpoint), str(tmp_path / "m2.safetensors"), "--weights", "model"]
    assert main(plain) == 0
    same = load_file(tmp_path / "m2.safetensors")["t_block.1.weight"]
    assert torch.equal(same, state["t_block.1.weight"])


def test_pixart_becomes_a_whole_stdit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": pixart()}, tmp_path / "x.pth")
    folder = tmp_path / "start"
    # PixArt's sizes all have 16 heads, of 2 channels here.
    assert main(["convert", str(tmp_path / "x.pth"), str(folder), "--from", "pixart"]) == 0
    assert "46 of 46 tensors, 43 are new" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert (config["depth"], config["hidden_size"], config["num_heads"]) == (2, 32, 16)
    assert "enable_flash_attn" not in config
    model = small(num_heads=16)
    assert load_into(model, folder).share == 1.0
    for name, tensor in pixart().items():
        if name.startswith("blocks."):
            assert torch.equal(model.state_dict()[f"spatial_{name}"], tensor)
    assert not model.state_dict()["temporal_blocks.1.mlp.fc2.weight"].any()


def test_what_is_no_pixart_does_not_become_one(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(checkpoint), str(tmp_path / "o"), "--from", "pixart"]) == 1
    assert "is not a PixArt model: it looks like STDiT3" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_large_folders_come_in_shards_with_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = dict(noisy().state_dict())
    monkeypatch.setattr(write, "SHARD_BYTES", 100_000)
    write_folder(tmp_path / "f", state, {}, dtypes_for(state, None), lambda _: None)
    names = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert "model-00001-of-00005.safetensors" in names
    assert "model.safetensors.index.json" in names
    model = small()
    assert load_into(model, tmp_path / "f").share == 1.0
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


def left_over(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != "epoch0-global_step5")


def test_a_target_that_is_there_stays_unless_told_otherwise(
    checkpoint: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m.safetensors"
    target.write_text("mine")
    with pytest.raises(CheckpointError, match="already exists"):
        convert(str(checkpoint), target)
    assert target.read_text() == "mine"
    convert(str(checkpoint), target, overwrite=True)
    assert len(load_file(target)) == 89
    assert left_over(tmp_path) == ["m.safetensors"]


@pytest.mark.long
def test_a_target_below_a_file_is_one_sentence(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["convert", str(checkpoint), str(tmp_path / "file" / "m.safetensors")]) == 1
    assert "m.safetensors could not be written: " in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("to", ["safetensors", "hf-folder"])
def test_a_failure_half_way_leaves_what_was_there(
    checkpoint: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "sync", full)
    with pytest.raises(CheckpointError, match="could not be written: No space left on device"):
        convert(str(checkpoint), target, to=to, overwrite=True)
    assert calls
    assert left_over(tmp_path) == ["target"]
    assert (target / "mine").read_text() == "mine"


def test_too_little_room_is_said_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(write.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(CheckpointError, match="are needed"):
        convert(str(checkpoint), tmp_path / "m.safetensors")
    assert left_over(tmp_path) == []


def test_an_interruption_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(checkpoint), tmp_path / "m.safetensors", progress=interrupt)
    assert left_over(tmp_path) == []
