"""The start from PixArt: recognised by content, the video model is the image model on every frame."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.models.stdit_weights import inputs, noisy, pixart, small
from trainer.errors import CheckpointError
from trainer.models.stdit import STDiT3
from trainer.weights.load import load_into


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Under a name that says nothing, in the wrapping of PixArt's own files."""
    torch.save({"state_dict": pixart(), "epoch": 3}, tmp_path / "download (1).bin")
    return tmp_path / "download (1).bin"


def started(file: Path, **options: int) -> STDiT3:
    model = small(**options)
    load_into(model, file)
    return model


def test_the_report_counts_what_is_loaded_and_what_is_new_by_right(file: Path) -> None:
    report = load_into(small(), file)
    assert report.model == "PixArt-α"
    assert report.share == 1.0
    assert not report.missing
    assert not report.unexpected
    assert report.left_out == ("pos_embed",)
    lines = "\n".join(report.lines())
    assert "spatial_blocks.[0-1] 30" in lines
    assert "temporal_blocks.[0-1] 34" in lines
    assert "fps_embedder 4" in lines


def test_every_tensor_of_the_image_model_arrives(file: Path) -> None:
    state, image = started(file).state_dict(), pixart()
    patch = "x_embedder.proj.weight"
    assert torch.equal(state[patch][:, :, 0], image[patch])
    for name in image.keys() - {patch, "pos_embed"}:
        assert torch.equal(state[name.replace("blocks", "spatial_blocks")], image[name]), name


@torch.no_grad()
def test_temporal_blocks_add_nothing_at_the_start(file: Path) -> None:
    model, given = started(file), inputs()
    whole = model(**given)

    for block in model.temporal_blocks:
        block.forward = lambda x_BTSD, *_rest: x_BTSD  # type: ignore[method-assign]
    assert torch.equal(model(**given), whole)


@torch.no_grad()
def test_a_frame_does_not_see_the_others_at_the_start(file: Path) -> None:
    model, given = started(file), inputs()
    whole = model(**given)
    x = given.pop("x_BCTHW")
    for frame in range(x.shape[2]):
        alone = model(x[:, :, frame : frame + 1], **given)
        torch.testing.assert_close(alone, whole[:, :, frame : frame + 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_after_training_the_same_check_fails() -> None:
    """So that the two tests above test something."""
    model, given = noisy(), inputs()
    whole = model(**given)
    x = given.pop("x_BCTHW")
    assert not torch.allclose(model(x[:, :, :1], **given), whole[:, :, :1], atol=1e-3)


@torch.no_grad()
def test_patches_of_several_frames_see_a_still_clip_as_one_image(file: Path) -> None:
    plain, deep = started(file, qk_norm=False), started(file, qk_norm=False, patch_size=(2, 2, 2))
    given = inputs(frames=2)
    given["x_BCTHW"] = given["x_BCTHW"][:, :, :1].expand(-1, -1, 2, -1, -1)
    torch.testing.assert_close(deep(**given), plain(**given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "kept"), [(4, 4), (9, 6)])
def test_the_null_text_is_cut_or_repeats_its_last_row(tmp_path: Path, rows: int, kept: int) -> None:
    image = pixart(rows=rows)
    torch.save(image, tmp_path / "x.pth")
    model = small()
    load_into(model, tmp_path / "x.pth")
    got, want = model.y_embedder.y_embedding, image["y_embedder.y_embedding"]
    assert torch.equal(got[:kept], want[:kept])
    assert torch.equal(got[-1], want[-1] if rows < 6 else want[5])


def test_half_a_pixart_is_refused_and_leaves_the_model_alone(tmp_path: Path) -> None:
    half = {name: t for name, t in pixart().items() if not name.startswith("blocks.1.")}
    torch.save(half, tmp_path / "x.pth")
    model = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"31 of 46 tensors fit; 15 missing"):
        load_into(model, tmp_path / "x.pth")
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    report = load_into(model, tmp_path / "x.pth", allow_partial=True)
    assert len(report.missing) == 15


def test_diffusers_layout_is_named(tmp_path: Path) -> None:
    tensors = {"transformer_blocks.0.attn1.to_q.weight": torch.zeros(2, 2), "pos_embed.proj.weight": torch.zeros(2, 4, 2, 2)}  # fmt: skip
    torch.save(tensors, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="diffusers' layout"):
        load_into(small(), tmp_path / "x.pth")
