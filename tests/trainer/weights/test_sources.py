"""Every form that weights come in gives the same model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.trainer.models.stdit_weights import (
    inputs,
    noisy,
    pixart,
    small,
    write_shards,
    write_upstream_checkpoint,
)
from trainer.errors import CheckpointError
from trainer.models.stdit import STDiT3
from trainer.weights import checkpoints
from trainer.weights.load import load_into, read_checkpoint
from trainer.weights.report import LoadReport
from trainer.weights.source import find_source

Tensors = dict[str, Tensor]


def state() -> Tensors:
    return {name: tensor.contiguous() for name, tensor in noisy().state_dict().items()}


def _pickled(name: str, wrap: Callable[[Tensors], object], **options: bool) -> Callable[[Path], Path]:  # fmt: skip
    def write(folder: Path) -> Path:
        torch.save(wrap(state()), folder / name, **options)
        return folder / name

    return write


def _safetensors(folder: Path) -> Path:
    save_file(state(), folder / "model.safetensors")
    return folder / "model.safetensors"


def _hugging_face(folder: Path) -> Path:
    _safetensors(folder)
    config = {
        "architectures": ["STDiT3"], "model_type": "STDiT3", "depth": 2, "hidden_size": 32,
        "enable_flash_attn": False, "enable_layernorm_kernel": False, "qk_norm_legacy": True,
        "freeze_y_embedder": True, "only_train_temporal": True, "drop_path": 0.7,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "training_args.bin").write_bytes(b"not weights")
    return folder


def _shards(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_shards(folder, state(), kind, "pytorch_model" if kind == "bin" else "model")
        return folder

    return write


def _bare_shards(folder: Path) -> Path:
    write_shards(folder, state(), "bin", "pytorch_model")
    (folder / "pytorch_model.bin.index.json").unlink()
    return folder


def _index(folder: Path) -> Path:
    write_shards(folder, state(), "safetensors", "model")
    return folder / "model.safetensors.index.json"


def _upstream(folder: Path) -> Path:
    return write_upstream_checkpoint(folder / "epoch4-global_step2210", state(), state())


def _unsharded(folder: Path) -> Path:
    place = _upstream(folder)
    for file in (place / "model").iterdir():
        file.unlink()
    (place / "model").rmdir()
    torch.save(state(), place / "model")
    return place


FORMS: dict[str, Callable[[Path], Path]] = {
    "pth": _pickled("m.pth", lambda s: s),
    "pt of the old format": _pickled("m.pt", lambda s: s, _use_new_zipfile_serialization=False),
    "state_dict inside": _pickled("m.ckpt", lambda s: {"state_dict": s, "epoch": 3}),
    "twice inside": _pickled("m.ckpt", lambda s: {"state_dict": {"model": s}}),
    "wrapped by DDP": _pickled("m.bin", lambda s: {f"module.{k}": v for k, v in s.items()}),
    "safetensors": _safetensors,
    "Hugging Face folder": _hugging_face,
    "bin shards": _shards("bin"),
    "bin shards without index": _bare_shards,
    "safetensors shards": _shards("safetensors"),
    "index file": _index,
    "Open-Sora checkpoint": _upstream,
    "Open-Sora checkpoint without shards": _unsharded,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(tmp_path: Path, form: str) -> None:
    path = FORMS[form](tmp_path)
    model = small()
    report = load_into(model, path)
    assert report.share == 1.0
    assert report.model == "STDiT3"
    want = state()
    assert all(torch.equal(tensor, want[name]) for name, tensor in model.state_dict().items())


def test_settings_of_how_to_run_never_come_from_the_weights_config(tmp_path: Path) -> None:
    model = small()
    before = model.config
    load_into(model, _hugging_face(tmp_path))
    assert model.config == before
    assert all(p.requires_grad for name, p in model.named_parameters() if name != "rope.freqs")
    assert find_source(tmp_path).config["qk_norm_legacy"] is True  # read, shown, not used


def test_bf16_weights_become_the_models_dtype(tmp_path: Path) -> None:
    save_file({k: v.bfloat16() for k, v in state().items()}, tmp_path / "m.safetensors")
    model = small()
    load_into(model, tmp_path / "m.safetensors")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    want = state()["t_block.1.weight"].bfloat16().float()
    assert torch.equal(model.state_dict()["t_block.1.weight"], want)


@pytest.mark.long
def test_a_checkpoints_average_is_taken_when_asked_for(tmp_path: Path) -> None:
    model, average = state(), {name: tensor + 1 for name, tensor in state().items()}
    path = write_upstream_checkpoint(tmp_path / "epoch1-global_step2", model, average)
    weights, averaged = read_checkpoint(path, ema=True)
    assert averaged
    assert torch.equal(weights["t_block.1.bias"], average["t_block.1.bias"])
    weights, averaged = read_checkpoint(path, ema=False)
    assert not averaged
    assert torch.equal(weights["t_block.1.bias"], model["t_block.1.bias"])
    assert "the average of the weights (EMA)" in load_into(small(), path, ema=True).notes


def test_one_ranks_flat_part_of_an_average_is_not_taken_for_all(tmp_path: Path) -> None:
    flat = {name: tensor.flatten()[: tensor.numel() // 2] for name, tensor in state().items()}
    path = write_upstream_checkpoint(tmp_path / "epoch1-global_step2", state(), flat)
    with pytest.raises(CheckpointError, match="one rank's flat part") as caught:
        load_into(small(), path, ema=True)
    assert "--weights model" in str(caught.value.hint)


def test_a_run_directory_means_its_newest_checkpoint(tmp_path: Path) -> None:
    names = ("epoch0-global_step1", "epoch0-global_step2")
    for name in names:
        write_upstream_checkpoint(tmp_path / name, state(), state())
    with pytest.raises(CheckpointError, match="no file of weights") as caught:
        find_source(tmp_path)  # of Open-Sora: which one is not said anywhere
    assert "epoch0-global_step1, epoch0-global_step2" in str(caught.value.hint)
    for name in names:
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "latest").write_text("epoch0-global_step1\n")  # it went back
    assert find_source(tmp_path).path.name == "epoch0-global_step1"


@pytest.mark.long
@pytest.mark.parametrize("name", ["latest of another", ".", "..", "", "gone", "a/b", "\0"])
def test_a_run_directory_s_weights_are_those_of_the_checkpoint_that_is_resumed_from(
    tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    for step in (1, 2):
        write_upstream_checkpoint(run / f"epoch0-global_step{step}", state(), state())
    write_upstream_checkpoint(run, state(), state())  # what "." would name
    (run / "epoch0-global_step1" / "manifest.json").write_text("{}")
    # the newest was deleted in part: its manifest has gone
    (run / "latest").write_text("epoch0-global_step2\n" if "latest" in name else name)
    assert checkpoints.find(run).name == find_source(run).path.name == "epoch0-global_step1"
    (run / "epoch0-global_step1" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        find_source(run)


def test_half_of_our_own_checkpoint_is_no_source_of_weights(tmp_path: Path) -> None:
    for name in ("epoch0-global_step1", ".tmp-epoch0-global_step2"):
        half = tmp_path / name
        write_upstream_checkpoint(half, state(), state())
        (half / "optimizer").mkdir(exist_ok=True)
        (half / "optimizer" / "rank-00000-of-00002.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match="complete"):
            find_source(half)


def test_a_hub_id_is_fetched_when_there_is_no_such_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def snapshot(repository: str, **_options: object) -> str:
        asked.append(repository)
        return str(_hugging_face(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert load_into(small(), "example-owner/example-model").share == 1.0
    assert set(asked) == {"example-owner/example-model"}


def _without(count: int) -> tuple[list[str], Tensors]:
    names = sorted(state())
    gone = names[:count]
    return gone, {name: tensor for name, tensor in state().items() if name not in gone}


def test_one_tensor_in_a_hundred_may_be_missing_and_is_reported(tmp_path: Path) -> None:
    gone, _ = _without(1)
    deep = {**state(), **{n.replace("_blocks.1.", f"_blocks.{i}."): t.clone() for n, t in state().items() if "_blocks.1." in n for i in (2, 3)}}  # fmt: skip
    del deep[gone[0]]
    save_file(deep, tmp_path / "m.safetensors")
    report = load_into(small(depth=4), tmp_path / "m.safetensors")
    assert report.missing == tuple(gone)
    assert 0.99 <= report.share < 1
    assert any("missing" in line and "final_layer 1" in line for line in report.lines())


def refused(model_file: Path, *, match: str, **options: int) -> tuple[LoadReport, CheckpointError]:
    """Refused without a trace in the model; taken with allow_partial."""
    model = small(**options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=match) as caught:
        load_into(model, model_file)
    assert "--allow-partial" in str(caught.value.hint)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    return load_into(model, model_file, allow_partial=True), caught.value


def test_more_is_refused_unless_partial_weights_are_allowed(tmp_path: Path) -> None:
    _, rest = _without(5)
    save_file(rest, tmp_path / "m.safetensors")
    report, _ = refused(tmp_path / "m.safetensors", match="5 missing")
    assert len(report.missing) == 5


def test_another_size_is_refused_with_the_numbers_to_set(tmp_path: Path) -> None:
    save_file(state(), tmp_path / "m.safetensors")
    report, error = refused(tmp_path / "m.safetensors", match="of another shape", mlp_ratio=2.0)
    assert "the weights have mlp_ratio 4.0 (model: 2.0)" in str(error.hint)
    assert len(report.mismatched) == 12
    _, error = refused(tmp_path / "m.safetensors", match="34 unknown", depth=1)
    assert "the weights have depth 2 (model: 1)" in str(error.hint)
    refused(tmp_path / "m.safetensors", match="8 unknown .spatial_blocks.0.attn", qk_norm=False)


def test_weights_of_another_kind_are_refused_even_so(tmp_path: Path) -> None:
    save_file({"encoder.conv_in.weight": torch.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="0 of 89 tensors fit"):
        load_into(small(), tmp_path / "m.safetensors", allow_partial=True)


def empty(**options: int) -> STDiT3:
    with torch.device("meta"):
        return small(**options)


def test_a_model_without_memory_gets_it_with_its_weights(tmp_path: Path) -> None:
    save_file(state(), tmp_path / "m.safetensors")
    model, want = empty(), state()
    load_into(model, tmp_path / "m.safetensors")
    assert all(torch.equal(tensor, want[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(**inputs()), noisy()(**inputs()))


def test_what_the_weights_do_not_give_is_made_as_in_a_fresh_model(tmp_path: Path) -> None:
    torch.save(pixart(), tmp_path / "x.pth")
    plain, late = small(seed=7), empty(seed=7)
    load_into(plain, tmp_path / "x.pth")
    torch.manual_seed(7)
    load_into(late, tmp_path / "x.pth")
    want = plain.state_dict()
    assert all(torch.equal(tensor, want[name]) for name, tensor in late.state_dict().items())


def test_a_refused_source_leaves_a_model_without_memory(tmp_path: Path) -> None:
    save_file({"other": torch.zeros(2)}, tmp_path / "m.safetensors")
    model = empty()
    with pytest.raises(CheckpointError, match="0 of 89"):
        load_into(model, tmp_path / "m.safetensors")
    assert model.t_block[1].weight.is_meta
