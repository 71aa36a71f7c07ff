"""What is damaged, foreign or hostile is one sentence that says what to do; nothing of it is run."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.models.stdit_weights import small
from trainer.errors import CheckpointError
from trainer.weights import checkpoints
from trainer.weights.__main__ import main
from trainer.weights.load import load_into, read_weights
from trainer.weights.tensorfile import read_file


class Hostile:
    """Unpickled by an ordinary torch.load, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def _zip(path: Path, evil: Hostile) -> None:
    torch.save({"state_dict": {"a": torch.zeros(2)}, "callback": evil}, path)


def _old(path: Path, evil: Hostile) -> None:
    torch.save({"a": torch.zeros(2), "b": evil}, path, _use_new_zipfile_serialization=False)


def _plain(path: Path, evil: Hostile) -> None:
    path.write_bytes(pickle.dumps({"a": evil}, protocol=2))


def _plain_4(path: Path, evil: Hostile) -> None:
    path.write_bytes(pickle.dumps({"a": evil}, protocol=4))


@pytest.mark.parametrize("write", [_zip, _old, _plain, _plain_4])
@pytest.mark.parametrize("name", ["m.pth", "pytorch_model.bin", "m.safetensors"])
def test_a_hostile_pickle_is_refused_and_never_run(
    tmp_path: Path, write: Callable[[Path, Hostile], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    mark, path = tmp_path / "ran", tmp_path / name
    write(path, Hostile(mark))
    for place in (path, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            load_into(small(), place, allow_partial=True)
        assert "\n" not in str(caught.value)
        with pytest.raises(CheckpointError):
            read_file(path, shapes_only=True)
    assert main(["inspect", str(path)]) == 1
    assert main(["convert", str(path), str(tmp_path / "out.safetensors")]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_the_pickle_of_these_tests_is_really_hostile(tmp_path: Path) -> None:
    _zip(tmp_path / "m.pth", Hostile(tmp_path / "ran"))
    torch.load(tmp_path / "m.pth", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("version", ["2.5.1", "2.5.0+cu124", "1.13.1"])
def test_a_torch_that_would_run_a_pickle_is_refused(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "m.pth")
    save_file({"a": torch.zeros(2)}, tmp_path / "m.safetensors")
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(
        CheckpointError, match=f"torch {re.escape(version)} can be made to run code"
    ):
        read_file(tmp_path / "m.pth")
    assert read_file(tmp_path / "m.safetensors").keys() == {"a"}
    for good in ("2.6.0", "2.13.0+cpu", "3.0.0a0"):
        monkeypatch.setattr(torch, "__version__", good)
        assert read_file(tmp_path / "m.pth").keys() == {"a"}


def test_pickles_are_read_in_one_place_only() -> None:
    """Nothing else unpickles what somebody else wrote; manifest/shared.py loads what a rank of this
    run sent through `gather_objects`, which is a pickle itself.
    """
    unpickling = re.compile(r"\b(torch\.load|pickle\.loads?|np\.load)\(([^)]*)")
    found = [
        (path.name, call[1])
        for path in (Path(__file__).parents[3] / "trainer").rglob("*.py")
        for call in unpickling.finditer(path.read_text())
        if "allow_pickle=False" not in call[2]
    ]
    assert sorted(found) == [("shared.py", "pickle.loads"), ("tensorfile.py", "torch.load")]


def _reduce_ex(path: Path, evil: Hostile) -> None:
    path.write_bytes(b"\x80\x02cposix\nsystem\nX%s\x85R." % _word(f"touch {evil.mark}"))


def _build(path: Path, evil: Hostile) -> None:
    call = b"cposix\nsystem\nX%s\x85R" % _word(f"touch {evil.mark}")
    torch.save({"a": torch.zeros(2)}, path)
    with zipfile.ZipFile(path) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w") as whole:
        for name, data in parts.items():
            whole.writestr(
                name, b"\x80\x02" + call + data[2:] if name.endswith("data.pkl") else data
            )


def _word(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode()


def _protocol_5(path: Path, evil: Hostile) -> None:
    path.write_bytes(pickle.dumps({"a": evil}, protocol=5))


def _protocol_0(path: Path, evil: Hostile) -> None:
    path.write_bytes(pickle.dumps({"a": evil}, protocol=0))


@pytest.mark.parametrize("write", [_reduce_ex, _build, _protocol_5, _protocol_0])
def test_a_pickle_that_calls_by_hand_is_refused_and_never_run(
    tmp_path: Path, write: Callable[[Path, Hostile], None]
) -> None:
    mark, path = tmp_path / "ran", tmp_path / "m.pth"
    write(path, Hostile(mark))
    for shapes_only in (False, True):
        with pytest.raises(CheckpointError):
            read_file(path, shapes_only=shapes_only)
    assert not mark.exists()


def test_what_a_pickle_asks_for_is_named(tmp_path: Path) -> None:
    _zip(tmp_path / "m.pth", Hostile(tmp_path / "ran"))
    with pytest.raises(CheckpointError, match=r"it asks to run posix\.system, which was refused"):
        read_weights(tmp_path / "m.pth")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")
    with pytest.raises(CheckpointError, match=r"torch\.nn\.modules\.linear\.Linear") as caught:
        read_weights(tmp_path / "whole.pt")
    assert "state_dict" in str(caught.value.hint)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.98])
@pytest.mark.parametrize("form", ["safetensors", "zip", "old"])
def test_a_cut_file_says_so(tmp_path: Path, form: str, share: float) -> None:
    path = tmp_path / ("m.safetensors" if form == "safetensors" else "m.pth")
    tensors = {"a": torch.randn(400), "b": torch.randn(40, 10)}
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=form == "zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    for shapes_only in (False, True):
        if form == "old" and shapes_only and share > 0.4:
            continue  # its shapes stand before its data
        with pytest.raises(CheckpointError, match=r"cut off|is empty") as caught:
            read_file(path, shapes_only=shapes_only)
        assert "copy the file again" in str(caught.value.hint)


@pytest.mark.parametrize("form", ["safetensors", "zip", "old"])
def test_damage_anywhere_ends_in_our_error_or_in_tensors(tmp_path: Path, form: str) -> None:
    path, draw = tmp_path / "m.bin", random.Random(form)
    tensors = {"a": torch.randn(7, 5), "b": torch.arange(4)}
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=form == "zip")
    whole = path.read_bytes()
    for _ in range(80):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 2, 5, 30])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(CheckpointError):
            read_file(path, shapes_only=draw.random() < 0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html>", "neither safetensors nor a torch checkpoint"),
        (b"PK\x03\x04" + b"\0" * 200, "cut off"),
    ],
)
def test_what_is_no_weights_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_weights(tmp_path / "m.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state": {}, "param_groups": []}, "optimizer's state"),
        ({"epoch": 3}, "no named tensors"),
        ([torch.zeros(2)], "no named tensors"),
        ({1: torch.zeros(2)}, "no named tensors"),
        ({"a": torch.zeros(3, 3).to_sparse()}, "sparse"),
    ],
)
def test_torch_files_of_something_else(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=message):
        read_weights(tmp_path / "m.pth")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_kind_of_number_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {name: tensor.clone() for name, tensor in small().state_dict().items()}
    state["t_block.1.weight"] = torch.zeros(192, 32).to(dtype)
    torch.save(state, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=r"t_block\.1\.weight is \w+, the model's is float32"):
        load_into(small(), tmp_path / "m.pth", allow_partial=True)


def test_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no file of weights"):
        read_weights(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "one.pth")
    torch.save({"a": torch.zeros(1)}, tmp_path / "two.pth")
    with pytest.raises(CheckpointError, match="holds 2 files of weights") as caught:
        read_weights(tmp_path)
    assert "one.pth, two.pth" in str(caught.value.hint)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../one.pth"}}')
    with pytest.raises(CheckpointError, match=r"names \['../one.pth'\]; shards lie beside it"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"b": "one.pth"}}')
    with pytest.raises(CheckpointError, match="1 tensors of the index are in no shard, first b"):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is not a valid index of shards"):
        read_weights(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="a diffusers pipeline"):
        read_weights(tmp_path)


def test_the_hub_out_of_reach_says_how_to_bring_the_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert main(["inspect", "example-owner/no-such-weights"]) == 1
    said = capsys.readouterr().err
    assert "not a local path, and the hub failed" in said
    assert "hf download example-owner/no-such-weights --local-dir DIR" in said
    assert "Traceback" not in said


def test_a_mistyped_path_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    for place in ("outputs/nowhere", "somewhere/model.pth", "nothing"):
        with pytest.raises(CheckpointError, match="there are no weights at"):
            read_weights(place)


def renamed(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in small().state_dict().items()}


@pytest.mark.long
def test_wrappers_of_a_module_are_taken_off_in_any_order(tmp_path: Path) -> None:
    for prefix in ("_orig_mod.module.", "module._orig_mod.", "module.module."):
        torch.save(renamed(prefix), tmp_path / "w.pt")
        assert load_into(small(), tmp_path / "w.pt").is_whole


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (renamed("model."), "its names begin with 'model.'"),
        (renamed("net.dit."), "its names begin with 'net.dit.'"),
        ({"double_blocks.0.img_attn.qkv.weight": torch.zeros(2)}, "tensors of FLUX, HunyuanVideo"),
        ({"model.diffusion_model.x.weight": torch.zeros(2)}, "tensors of a model of ComfyUI"),
        ({"transformer_blocks.0.attn1.to_q.weight": torch.zeros(2)}, "a transformer of diffusers"),
        ({"down_blocks.0.resnets.0.norm1.weight": torch.zeros(2)}, "tensors of a UNet"),
        ({"blocks.0.cross_attn.norm_k.weight": torch.zeros(2)}, "tensors of Wan"),
        ({"a.lora_A.weight": torch.zeros(2)}, "tensors of a LoRA"),
        ({"spatial_vae.a": torch.zeros(2), "temporal_vae.a": torch.zeros(2)}, "Open-Sora VAE"),
    ],
)
def test_other_networks_and_names_are_said(tmp_path: Path, found: Any, says: str) -> None:
    torch.save(found, tmp_path / "w.pt")
    with pytest.raises(CheckpointError) as caught:
        load_into(small(), tmp_path / "w.pt")
    assert says in str(caught.value.hint)


@pytest.mark.parametrize("name", ["ema_state_dict", "params_ema", "generator"])
def test_unknown_name_around_the_weights_is_said(tmp_path: Path, name: str) -> None:
    torch.save({name: renamed(""), "step": 3}, tmp_path / "w.pt")
    with pytest.raises(
        CheckpointError, match=f"holds weights under '{name}', names that"
    ) as caught:
        read_file(tmp_path / "w.pt")
    assert "torch.save(found[NAME], FILE)" in str(caught.value.hint)


@pytest.mark.parametrize("mark", ["running_states.json", "lr_scheduler"])
def test_checkpoint_of_open_sora_is_named(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "run" / "epoch0-global_step15"
    (folder / "model").mkdir(parents=True)
    (folder / mark).touch()
    for path in (folder, folder.parent):
        with pytest.raises(CheckpointError, match="a checkpoint of Open-Sora's own") as caught:
            checkpoints.find(path)
        assert f"--ckpt-path {folder} takes its weights" in str(caught.value.hint)
    (folder / mark).unlink()
    with pytest.raises(CheckpointError, match=r"is not complete: it has no manifest\.json"):
        checkpoints.find(folder)
