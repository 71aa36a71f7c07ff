"""Frames that training clips are given."""

from __future__ import annotations

import pytest
import torch

from trainer.diffusion.frame_masks import KINDS, FrameMasks, build_masks, draw_mask
from trainer.diffusion.rectified_flow import RectifiedFlow
from trainer.errors import ConfigError

STAGE1 = {
    "random": 0.05,
    "intepolate": 0.005,
    "quarter_random": 0.005,
    "quarter_head": 0.005,
    "quarter_tail": 0.005,
    "quarter_head_tail": 0.005,
    "image_random": 0.025,
    "image_head": 0.05,
    "image_tail": 0.025,
    "image_head_tail": 0.025,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(kind: str, frames: int, count: int = 200) -> set[str]:
    """The different masks, as text: 1 is made from noise, 0 is given."""
    generator = seeded()
    masks = [draw_mask(kind, frames, generator).int().tolist() for _ in range(count)]
    return {"".join(map(str, mask)) for mask in masks}


@pytest.mark.parametrize(
    ("kind", "frames", "masks"),
    [
        ("identity", 5, {"11111"}),
        ("image_head", 5, {"01111"}),
        ("image_tail", 5, {"11110"}),
        ("image_head_tail", 5, {"01110"}),
        ("image_random", 3, {"011", "101", "110"}),
        ("quarter_head", 8, {"01111111", "00111111"}),
        ("quarter_tail", 8, {"11111110", "11111100"}),
        ("quarter_head_tail", 8, {"01111110", "00111100"}),
        ("quarter_random", 4, {"0111", "1011", "1101", "1110"}),
        ("intepolate", 5, {"01010", "10101"}),
        ("random", 2, {"01", "10", "11"}),
    ],
)
def test_each_kind_gives_its_frames(kind: str, frames: int, masks: set[str]) -> None:
    assert drawn(kind, frames) == masks


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_never_given(kind: str) -> None:
    assert drawn(kind, 1, 20) == {"1"}


@pytest.mark.parametrize("frames", [2, 3])
def test_short_clips_have_quarters_of_one_frame_where_upstream_fails(frames: int) -> None:
    for kind in ("quarter_head", "quarter_tail", "quarter_random", "quarter_head_tail"):
        assert all(1 <= mask.count("0") <= 2 for mask in drawn(kind, frames))


@pytest.mark.long
def test_the_first_stages_shares_give_every_fifth_clip_some_frames() -> None:
    masks = build_masks(STAGE1).draw(8000, 15, seeded())
    assert masks is not None
    given = ~masks
    # Open-Sora 1.2's own generator over 20,000 clips: 0.2016, 0.623, 0.1135, 0.0900.
    assert given.any(1).float().mean() == pytest.approx(0.2016, abs=0.02)
    assert given.float().sum(1).mean() == pytest.approx(0.623, abs=0.09)
    assert given[:, 0].float().mean() == pytest.approx(0.1135, abs=0.015)
    assert given[:, -1].float().mean() == pytest.approx(0.0900, abs=0.015)


def test_masks_are_a_function_of_the_generator() -> None:
    masks = build_masks({"random": 0.7, "image_head": 0.2})
    first, again, other = (masks.draw(16, 9, seeded(seed)) for seed in (3, 3, 4))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.equal(again)
    assert not first.equal(other)
    state = torch.get_rng_state()
    masks.draw(16, 9, seeded())
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("ratios", [None, {}, {"random": 0.0}, {"identity": 1.0}])
def test_nothing_is_drawn_where_nothing_is_given(ratios: dict[str, float] | None) -> None:
    generator = seeded()
    before = generator.get_state()
    assert build_masks(ratios).draw(4, 9, generator) is None
    assert generator.get_state().equal(before)


def test_a_batch_without_given_frames_needs_no_mask() -> None:
    assert build_masks({"image_head": 1.0}).draw(4, 1, seeded()) is None


def test_a_clip_always_keeps_a_frame_to_learn() -> None:
    assert drawn("image_head_tail", 2) == {"00"}  # as upstream, whose loss is then 0/0
    assert FrameMasks({"image_head_tail": 1.0}).draw(8, 2, seeded()) is None


def test_the_correct_spelling_is_taken_too() -> None:
    assert build_masks({"interpolate": 0.5}) == build_masks({"intepolate": 0.5})


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        ({"image_hed": 0.1}, "there is no kind 'image_hed'"),
        ({"random": -0.1}, "must be between 0 and 1"),
        ({"random": 0.8, "image_head": 0.3}, "add up to 1.1"),
    ],
)
def test_wrong_shares_are_one_sentence(ratios: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build_masks(ratios)


def test_given_frames_are_clean_and_outside_of_the_loss() -> None:
    """The loss is the mean over a clip's other frames, then over clips, as upstream's."""
    z = torch.randn(2, 3, 5, 2, 2)
    noise, t = torch.randn_like(z), torch.tensor([300.0, 700.0])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 0, 0, 1]], dtype=torch.bool)
    guess = torch.zeros_like(z, requires_grad=True)
    seen = {}

    def model(x: torch.Tensor, time: torch.Tensor, x_mask: torch.Tensor) -> torch.Tensor:
        seen.update(x=x, x_mask=x_mask)
        return guess

    losses = RectifiedFlow().training_losses(model, z, mask=mask, t=t, noise=noise)
    losses.mean().backward()
    frames = (z - noise).square().mean((1, 3, 4))
    assert losses[0].item() == pytest.approx(frames[0, 1:].mean().item())
    assert losses[1].item() == pytest.approx(frames[1, [0, 1, 4]].mean().item())
    assert guess.grad is not None
    assert guess.grad.abs().sum((1, 3, 4)).gt(0).equal(mask)
    assert seen["x_mask"].equal(mask)
    assert seen["x"].transpose(1, 2)[~mask].equal(z.transpose(1, 2)[~mask])
