"""Rectified flow: the way between noise and a latent. Upstream's numbers are in tests/parity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.config.keys import SchedulerConfig
from trainer.diffusion.rectified_flow import RectifiedFlow, build_flow, draw_noise, upstream_frames
from trainer.errors import ConfigError

# B batch · C channels · T,H,W latent frames, height, width


def latents(count: int = 2, frames: int = 3) -> Tensor:
    return torch.randn(count, 2, frames, 4, 5, generator=torch.Generator().manual_seed(0))


def sizes(count: int, frames: float = 51.0) -> dict[str, Tensor]:
    return {
        "height": torch.full((count,), 256.0),
        "width": torch.full((count,), 320.0),
        "num_frames": torch.full((count,), frames),
    }


class Knows:
    """A model that knows the clean latent: from any point it gives the exact velocity to it."""

    def __init__(self, clean: Tensor) -> None:
        self.clean = clean
        self.calls: list[dict[str, Any]] = []

    def __call__(self, x_BCTHW: Tensor, timestep_B: Tensor, **kwargs: Any) -> Tensor:
        self.calls.append({"t": timestep_B, **kwargs})
        share = (timestep_B / 1000)[:, None, None, None, None]
        clean = self.clean.repeat(len(x_BCTHW) // len(self.clean), 1, 1, 1, 1)
        velocity = (clean - x_BCTHW) / share.clamp(min=1e-6)  # = clean - noise
        return torch.cat([velocity, torch.full_like(velocity, 7.0)], dim=1)  # second half unused


def test_the_true_velocity_has_no_loss_and_another_has() -> None:
    z, flow = latents(), RectifiedFlow()
    generator = torch.Generator().manual_seed(5)
    loss = flow.training_losses(Knows(z), z, generator=generator)
    assert loss.shape == (2,)
    assert loss.max() < 1e-6
    assert flow.training_losses(Knows(z + 1), z, generator=generator).min() > 1


@pytest.mark.parametrize("transform", [False, True])
def test_the_true_velocity_leads_from_noise_to_the_latent(transform: bool) -> None:
    z = latents()
    flow = RectifiedFlow(use_timestep_transform=transform)
    text = torch.zeros(2, 1, 3, 4)
    model = Knows(z)
    out = flow.sample(model, torch.randn_like(z), text, text[0, 0], None, sizes(2), steps=5)
    assert torch.allclose(out, z, atol=1e-4)
    assert len(model.calls) == 5
    assert len(model.calls[0]["t"]) == 4  # guidance: with and without text in one call
    assert model.calls[0]["y"].shape == (4, 1, 3, 4)


def test_guidance_of_one_asks_the_model_once() -> None:
    z = latents()
    text = torch.zeros(2, 1, 3, 4)
    model = Knows(z)
    RectifiedFlow().sample(model, z, text, text[0, 0], None, sizes(2), steps=2, cfg_scale=1.0)
    assert len(model.calls[0]["t"]) == 2


def test_masked_frames_are_clean_and_out_of_the_loss() -> None:
    z, flow = latents(), RectifiedFlow()
    mask = torch.tensor([[True, False, True], [False, False, False]])
    seen: list[Tensor] = []

    def wrong(x: Tensor, t: Tensor, **kwargs: Any) -> Tensor:
        seen.append(x)
        assert torch.equal(kwargs["x_mask"], mask)
        return torch.zeros_like(x)

    t, noise = torch.tensor([500.0, 500.0]), torch.randn_like(z)
    loss = flow.training_losses(wrong, z, mask=mask, t=t, noise=noise)
    assert torch.equal(seen[0][0, :, 1], z[0, :, 1])
    assert not torch.equal(seen[0][0, :, 0], z[0, :, 0])
    by_hand = (z - noise)[0, :, [0, 2]].square().mean()
    assert loss[0] == pytest.approx(float(by_hand))
    assert loss[1] == 0.0  # nothing to learn there; upstream divides by zero


def test_kept_frames_come_out_as_they_went_in() -> None:
    z = latents()
    text = torch.zeros(2, 1, 3, 4)
    frame_mask = torch.tensor([[1.0, 0.0, 0.5]] * 2)
    start = torch.randn_like(z)
    start[:, :, 1:] = z[:, :, 1:]
    model = Knows(z)
    out = RectifiedFlow().sample(
        model, start, text, text[0, 0], None, sizes(2), steps=4, frame_mask=frame_mask,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert torch.equal(out[:, :, 1], z[:, :, 1])
    assert torch.allclose(out, z, atol=1e-4)
    half = [call["x_mask"][0].tolist() for call in model.calls]
    assert half == [[True, False, False]] * 2 + [[True, False, True]] * 2


def test_the_seed_decides_times_and_noise() -> None:
    z, flow = latents(), RectifiedFlow(sample_method="logit-normal")
    zero = lambda x, t, **kwargs: torch.zeros_like(x)  # noqa: E731
    losses = [
        flow.training_losses(zero, z, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [
        ({}, 500.0, 288.7),
        ({"sample_method": "logit-normal"}, 500.0, 208.3),
        ({"sample_method": "logit-normal", "loc": 0.5, "scale": 0.8}, 608.6, 169.1),
        ({"use_discrete_timesteps": True}, 499.5, 288.7),
    ],
)
def test_training_times_have_upstreams_distribution(
    options: dict[str, Any], mean: float, std: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    t = RectifiedFlow(**options).sample_timesteps(100_000, generator).double()
    assert t.mean() == pytest.approx(mean, abs=3)
    assert t.std() == pytest.approx(std, abs=2)
    assert t.min() >= 0
    assert t.max() <= 1000


def test_short_clips_keep_their_times_under_the_latent_length_but_not_under_upstreams() -> None:
    z, t = latents(frames=4), torch.tensor([500.0, 900.0])
    ours = RectifiedFlow(use_timestep_transform=True)
    upstream = RectifiedFlow(use_timestep_transform=True, timestep_transform="upstream")
    assert (ours.transform(t, z, sizes(2, frames=16)) > 100).all()
    assert (upstream.transform(t, z, sizes(2, frames=16)) == 0).all()  # hpcaitech/Open-Sora #601
    # Where the video is whole chunks of 17 frames they agree: 51 frames are 15 latents.
    whole = latents(frames=15)
    assert torch.allclose(
        ours.transform(t, whole, sizes(2)), upstream.transform(t, whole, sizes(2))
    )


def test_images_are_one_latent_frame() -> None:
    assert upstream_frames(torch.tensor([1.0, 1.0])).tolist() == [1, 1]
    assert upstream_frames(torch.tensor([51.0, 102.0])).tolist() == [15, 30]


def test_one_generator_per_clip_makes_noise_independent_of_the_batch() -> None:
    generators = lambda: [torch.Generator().manual_seed(seed) for seed in (1, 2)]  # noqa: E731
    both = draw_noise((2, 3, 4), generators())
    alone = draw_noise((1, 3, 4), generators()[1:])
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])


def test_a_scheduler_section_becomes_a_flow_and_wrong_ones_are_refused() -> None:
    flow = build_flow(SchedulerConfig(sample_method="logit-normal", cfg_scale=3.0))
    assert flow == RectifiedFlow(sample_method="logit-normal", cfg_scale=3.0)
    with pytest.raises(ConfigError, match="use_discrete_timesteps needs sample_method uniform"):
        build_flow(SchedulerConfig(sample_method="logit-normal", use_discrete_timesteps=True))


def test_a_negative_prompt_is_read_at_its_own_tokens() -> None:
    z = latents()
    model = Knows(z)
    text, negative = torch.ones(2, 1, 3, 4), torch.full((1, 1, 3, 4), 2.0)
    mask, null_mask = torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, 0]])
    flow = RectifiedFlow()
    flow.sample(model, z, text, negative, mask, sizes(2), steps=1, null_mask=null_mask)
    assert model.calls[0]["mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert model.calls[0]["y"][2:].eq(2).all()
    flow.sample(model, z, text, text[0, 0], mask, sizes(2), steps=1)  # the learned null text
    assert torch.equal(model.calls[1]["mask"], mask)  # upstream: rows repeat


def bent(x_BCTHW: Tensor, timestep_B: Tensor, **kwargs: Any) -> Tensor:
    """A smooth model that depends on everything, in the dtype of its input."""
    share = (timestep_B / 1000).to(x_BCTHW)[:, None, None, None, None]
    velocity = (0.7 * x_BCTHW - 0.2 * share).sin() + 0.1 * kwargs["y"].to(x_BCTHW).mean()
    return torch.cat([velocity, velocity], dim=1)


@pytest.mark.parametrize("frames", [1, 2, 5, 30])
@pytest.mark.parametrize("transform", ["true-length", "upstream"])
def test_fp32_follows_fp64_through_loss_and_sampling(frames: int, transform: str) -> None:
    flow = RectifiedFlow(use_timestep_transform=True, timestep_transform=transform)
    z, t = latents(frames=frames), torch.tensor([130.0, 870.0])
    mask = torch.ones(2, frames, dtype=torch.bool)
    mask[0, 0] = False
    edit = torch.ones(2, frames)
    edit[0, 0], edit[1, -1] = 0.0, 0.6
    pixel_frames = 1.0 if frames == 1 else 17.0 * frames
    found = []
    for dtype in (torch.float32, torch.float64):
        x, noise = z.to(dtype), z.to(dtype).flip(0)
        text = torch.ones(2, 1, 3, 4, dtype=dtype)
        loss = flow.training_losses(
            bent, x, {"y": text}, mask=mask if frames > 1 else None, t=t, noise=noise
        )
        noises = [noise] * 8
        out = flow.sample(
            bent, x, text, 0 * text[0, 0], None, sizes(2, pixel_frames), steps=8,
            frame_mask=edit, noises=noises,
        )  # fmt: skip
        found.append((loss.double(), out.double()))
    (loss, out), (exact_loss, exact_out) = found
    assert torch.allclose(loss, exact_loss, rtol=2e-6)
    assert torch.allclose(out, exact_out, rtol=1e-5, atol=1e-5)


def test_losses_in_bf16_are_within_two_percent_of_fp32() -> None:
    flow, z = RectifiedFlow(), latents(count=4, frames=8)
    t, noise = torch.tensor([50.0, 400.0, 700.0, 990.0]), z.flip(0)
    losses = [
        flow.training_losses(
            bent, z.to(dtype), {"y": torch.ones(4, 1, 3, 4)}, t=t, noise=noise.to(dtype)
        )
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert losses[1].dtype == torch.float32
    assert torch.allclose(losses[0], losses[1], rtol=0.02)
