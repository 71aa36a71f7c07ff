"""Rectified flow: losses to train on, and the way from noise to a latent.

Time runs from 0 (clean) to `num_timesteps` (noise). A point on the way is (1 - s) clean + s noise
with s = t / num_timesteps, and the model's target is the velocity clean - noise. Numbers equal
Open-Sora 1.2's scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.config.keys import SchedulerConfig
from trainer.errors import ConfigError

# B batch · C channels · T,H,W latent frames, height, width · L text tokens
BASE_PIXELS = 512 * 512
VelocityModel = Callable[..., Tensor]  # at least C channels; the first C are the velocity
Generators = torch.Generator | Sequence[torch.Generator] | None  # one, or one per clip


def timestep_transform(
    t_B: Tensor,
    height_B: Tensor,
    width_B: Tensor,
    frames_B: Tensor,
    num_timesteps: int = 1000,
    scale: float = 1.0,
) -> Tensor:
    """Shift times towards noise for large clips: t' = r t / (1 + (r - 1) t), t in 0..1.

    r = sqrt(pixels / 512^2) * sqrt(frames) * scale, with frames counted in latents.
    """
    t_B = t_B / num_timesteps
    ratio = (height_B * width_B / BASE_PIXELS).sqrt() * frames_B.sqrt() * scale
    return ratio * t_B / (1 + (ratio - 1) * t_B) * num_timesteps


def upstream_frames(num_frames_B: Tensor) -> Tensor:
    """Upstream's latent length: 0 (so every t = 0) for 2 to 16 frames; row 0 decides (#601)."""
    if num_frames_B[0] == 1:
        return torch.ones_like(num_frames_B)
    return num_frames_B // 17 * 5


@dataclass(frozen=True)
class RectifiedFlow(SchedulerConfig):
    """What the settings mean. Raises ConfigError for two that exclude each other."""

    def __post_init__(self) -> None:
        if self.use_discrete_timesteps and self.sample_method != "uniform":
            raise ConfigError("scheduler: use_discrete_timesteps needs sample_method uniform")

    def sample_timesteps(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Training times before the transform, fp32 [count] on the CPU."""
        if self.use_discrete_timesteps:
            return torch.randint(0, self.num_timesteps, (count,), generator=generator)
        if self.sample_method == "uniform":
            return torch.rand(count, generator=generator) * self.num_timesteps
        normal = torch.randn(count, generator=generator)
        return torch.sigmoid(self.loc + self.scale * normal) * self.num_timesteps

    def transform(self, t_B: Tensor, z_BCTHW: Tensor, sizes: Mapping[str, Any]) -> Tensor:
        """Times for the clips' size; `sizes` has height, width (pixels), num_frames, each [B]."""
        if not self.use_timestep_transform:
            return t_B
        if self.timestep_transform == "upstream":
            frames_B = upstream_frames(sizes["num_frames"])
        else:
            frames_B = torch.full_like(t_B, z_BCTHW.shape[2], dtype=torch.float32)
        frames_B, height_B, width_B = (
            values.to(t_B.device) for values in (frames_B, sizes["height"], sizes["width"])
        )
        scales = (self.num_timesteps, self.transform_scale)
        return timestep_transform(t_B, height_B, width_B, frames_B, *scales)

    def add_noise(self, z_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor) -> Tensor:
        """The point at time t on the way from clean to noise."""
        # fp32: one step of bf16 at t = 1000 is 4 steps of the scheduler
        clean_share = 1 - (t_B.float() / self.num_timesteps)[:, None, None, None, None]
        return clean_share * z_BCTHW + (1 - clean_share) * noise_BCTHW

    def training_losses(
        self,
        model: VelocityModel,
        z_BCTHW: Tensor,
        model_kwargs: Mapping[str, Any] | None = None,
        generator: torch.Generator | None = None,
        mask: Tensor | None = None,
        t: Tensor | None = None,
        noise: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """Mean squared error of the velocity per clip, fp32 [B].

        `mask` bool [B, T] keeps frames that are False clean and out of the loss; a clip without any
        True frame has loss 0 (upstream: NaN). A given `t` is used as it is, a drawn one
        transformed. `generator` is a CPU generator: times, then noise. A given `kept` is the
        model's.
        """
        kwargs = dict(model_kwargs or {})
        if t is None:
            t = self.sample_timesteps(len(z_BCTHW), generator).to(z_BCTHW.device)
            t = self.transform(t, z_BCTHW, kwargs)
        if noise is None:
            # Drawn on the CPU, so that a seed means the same clips on every device.
            noise = torch.randn(z_BCTHW.shape, generator=generator).to(z_BCTHW)
        x_BCTHW = self.add_noise(z_BCTHW, noise, t)
        if mask is not None:
            x_BCTHW = torch.where(_per_frame(mask), x_BCTHW, z_BCTHW)
            kwargs.setdefault("x_mask", mask)
        if kept is not None:
            kwargs["kept"] = kept
        velocity = model(x_BCTHW, t, **kwargs)[:, : z_BCTHW.shape[1]]
        error = (velocity.float() - (z_BCTHW - noise).float()).square()
        if mask is None:
            return error.mean(dim=(1, 2, 3, 4))
        per_frame_BT = error.mean(dim=(1, 3, 4))
        return (per_frame_BT * mask).sum(1) / mask.sum(1).clamp(min=1)

    @torch.no_grad()
    def sample(
        self,
        model: VelocityModel,
        z_BCTHW: Tensor,
        y_B1LC: Tensor,
        y_null_LC: Tensor,
        text_mask: Tensor | None,
        kwargs: Mapping[str, Any],
        steps: int | None = None,
        cfg_scale: float | None = None,
        generator: Generators = None,
        progress: Callable[[int, Tensor], None] | None = None,
        frame_mask: Tensor | None = None,
        noises: Iterable[Tensor] | None = None,
        null_mask: Tensor | None = None,
    ) -> Tensor:
        """From noise `z` to a latent, with guidance v = v_null + cfg_scale (v_text - v_null).

        `y_null` is the learned null text, or a negative prompt's features with its own `null_mask`
        [1 or B, L]; without one the null half is read at the caption's tokens, as upstream does.
        `kwargs` go to the model. `progress(step, z)` gets what the model is to see. `frame_mask`
        [B, T] is each frame's edit ratio: 1 is made from noise, 0 kept as `z` has it, between takes
        part from that time on, with noise of `generator` or one of `noises` per step.
        """
        steps = steps or self.num_sampling_steps
        guidance = self.cfg_scale if cfg_scale is None else cfg_scale
        times = self._sampling_times(z_BCTHW, steps, kwargs)
        guided = guidance != 1.0
        y = torch.cat([y_B1LC, y_null_LC.expand_as(y_B1LC).to(y_B1LC)]) if guided else y_B1LC
        if guided and null_mask is not None and text_mask is not None:
            text_mask = torch.cat([text_mask, null_mask.expand_as(text_mask).to(text_mask)])
        if frame_mask is not None:
            active_BT = frame_mask == 1  # starts as noise already
            drawn = iter(noises or _noises(z_BCTHW.shape, generator))
        for step, t_B in enumerate(times):
            extra: dict[str, Any] = {}
            if frame_mask is not None:
                # Frames whose time has come start from the clean latent, noised to that time.
                before_BT, active_BT = active_BT, frame_mask * self.num_timesteps >= t_B[:, None]
                noised = self.add_noise(z_BCTHW, next(drawn).to(z_BCTHW), t_B)
                z_BCTHW = torch.where(_per_frame(active_BT & ~before_BT), noised, z_BCTHW)
                extra["x_mask"] = active_BT.repeat(1 + guided, 1)
            if progress is not None:
                progress(step, z_BCTHW)
            x, t = (torch.cat([z_BCTHW] * 2), torch.cat([t_B] * 2)) if guided else (z_BCTHW, t_B)
            velocity = model(x, t, y=y, mask=text_mask, **kwargs, **extra)[:, : z_BCTHW.shape[1]]
            if guided:
                with_text, without = velocity.chunk(2)
                velocity = without + guidance * (with_text - without)
            dt_B = (t_B - times[step + 1] if step + 1 < steps else t_B) / self.num_timesteps
            moved = z_BCTHW + velocity * dt_B[:, None, None, None, None]
            if frame_mask is not None:
                moved = torch.where(_per_frame(active_BT), moved, z_BCTHW)
            z_BCTHW = moved
        return z_BCTHW

    def _sampling_times(
        self, z_BCTHW: Tensor, steps: int, sizes: Mapping[str, Any]
    ) -> list[Tensor]:
        times = [(1.0 - i / steps) * self.num_timesteps for i in range(steps)]
        if self.use_discrete_timesteps:
            times = [float(round(t)) for t in times]
        of_clips = (torch.tensor([t] * len(z_BCTHW), device=z_BCTHW.device) for t in times)
        return [self.transform(t_B, z_BCTHW, sizes) for t_B in of_clips]


def draw_noise(shape: Sequence[int], generator: Generators) -> Tensor:
    """fp32 noise on the CPU; with one generator a clip it does not depend on the batch."""
    if generator is None or isinstance(generator, torch.Generator):
        return torch.randn(tuple(shape), generator=generator)
    return torch.stack([torch.randn(tuple(shape[1:]), generator=own) for own in generator])


def _noises(shape: Sequence[int], generator: Generators) -> Iterator[Tensor]:
    while True:
        yield draw_noise(shape, generator)


def build_flow(config: SchedulerConfig) -> RectifiedFlow:
    return RectifiedFlow(**vars(config))


def _per_frame(mask_BT: Tensor) -> Tensor:
    return mask_BT[:, None, :, None, None]
