"""Open-Sora 1.2's video VAE: frames to spatial latents, chunks of 17 of those to 5 latents.

Numbers and keys equal upstream's (spatial_vae.module.*, temporal_vae.*, scale, shift). A latent is
(z - shift) / scale, so that the diffusion model sees values of about one size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from trainer.errors import ConfigError
from trainer.models.memory import MemoryBudget, in_batches
from trainer.models.vae.interface import Posterior
from trainer.models.vae.spatial import FACTOR, SpatialSettings, SpatialVAE
from trainer.models.vae.temporal import TemporalSettings, TemporalVAE

# B batch · C channels · T frames · H,W pixels · Z,h,w latent frames, height, width
SHIFT, SCALE = (-0.10, 0.34, 0.27, 0.98), (3.85, 2.32, 2.33, 3.06)


@dataclass(frozen=True, slots=True)
class VideoVAESettings:
    """Sizes of both parts; the defaults are those of the published weights."""

    spatial: SpatialSettings = field(default_factory=SpatialSettings)
    temporal: TemporalSettings = field(default_factory=TemporalSettings)
    micro_frame_size: int | None = 17  # frames of a chunk; chunks do not see each other. None: one
    shift: tuple[float, ...] = SHIFT  # per latent channel
    scale: tuple[float, ...] = SCALE

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> VideoVAESettings:
        """From `spatial`, `temporal` and the rest as plain data; other keys are not read."""
        spatial = _settings(SpatialSettings, data.get("spatial", {}))
        temporal = _settings(TemporalSettings, data.get("temporal", {}))
        return _settings(cls, {**data, "spatial": spatial, "temporal": temporal})


def _settings(cls: type[Any], data: Mapping[str, Any]) -> Any:
    known = {item.name for item in fields(cls)}
    return cls(**_with_tuples({name: data[name] for name in data if name in known}))


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


class OpenSoraVAE(nn.Module):
    """Frozen; computes in the weights' dtype. `budget` decides how much goes through at once."""

    scale: Tensor
    shift: Tensor

    def __init__(self, settings: VideoVAESettings, budget: MemoryBudget | None = None) -> None:
        super().__init__()
        self.settings, self.budget = settings, budget or MemoryBudget()
        self.spatial_vae = SpatialVAE(settings.spatial)
        self.temporal_vae = TemporalVAE(settings.temporal)
        for name in ("scale", "shift"):
            self.register_buffer(name, self._per_channel(name, getattr(settings, name)))
        self.eval().requires_grad_(False)

    def _per_channel(self, name: str, values: Sequence[float]) -> Tensor:
        if len(values) != self.out_channels:
            count = f"{len(values)} values for {self.out_channels}"
            raise ConfigError(f"vae.{name} has {count} latent channels")
        return torch.tensor(values)[None, :, None, None, None]

    def override(self, settings: Mapping[str, Any]) -> None:
        """Set micro_frame_size, shift or scale after the weights are loaded. Raises ConfigError."""
        self.settings = replace(self.settings, **_with_tuples(settings))
        for name in settings.keys() & {"scale", "shift"}:
            self.get_buffer(name).copy_(self._per_channel(name, settings[name]))

    @property
    def out_channels(self) -> int:
        return self.settings.temporal.embed_dim

    @property
    def dtype(self) -> torch.dtype:
        """That of the computation; shift and scale may be wider."""
        return self.temporal_vae.quant_conv.conv.weight.dtype

    @property
    def micro_frame_size(self) -> int | None:
        return self.settings.micro_frame_size

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        """(T, H, W) of a latent: 5 frames per 17, a quarter of the rest rounded up; edges / 8."""
        frames, height, width = video_size
        edge = self.settings.spatial.factor
        return self._latent_frames(frames), height // edge, width // edge

    def _latent_frames(self, frames: int) -> int:
        chunk = self.micro_frame_size or frames
        whole, rest = divmod(frames, chunk)
        return whole * self.temporal_vae.length(chunk) + self.temporal_vae.length(rest)

    @torch.no_grad()
    def encode(
        self,
        video_BCTHW: Tensor,
        generator: torch.Generator | None = None,
        noises: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Latent fp32 [B, 4, Z, h, w] of pixels in -1..1, both posteriors sampled as upstream does.
        Noise comes from `generator` (None: torch's own of the device), for all frames first, then
        for the latent, or from `noises`, [B*T, 4, h, w] and [B, 4, Z, h, w]. Raises ValueError, and
        OutOfMemory when one frame in strips does not fit."""
        self._check(video_BCTHW)
        spatial = self._frame_posterior(video_BCTHW)
        frames = spatial.at(noises[0]) if noises else spatial.sample(generator)
        posterior = self._chunk_posterior(frames, len(video_BCTHW))
        return posterior.at(noises[1]) if noises else posterior.sample(generator)

    @torch.no_grad()
    def encode_posterior(self, video_BCTHW: Tensor) -> Posterior:
        """Mean and log-variance of the latent, fp32 [B, 4, Z, h, w], of the frames' means. Their
        spread (a standard deviation near 1e-3) would need the network once more."""
        self._check(video_BCTHW)
        return self._chunk_posterior(self._frame_posterior(video_BCTHW).mean, len(video_BCTHW))

    @torch.no_grad()
    def decode(self, z_BCZHW: Tensor, num_frames: int) -> Tensor:
        """Pixels [B, 3, num_frames, 8 h, 8 w], about -1..1, in the weights' dtype."""
        shape, channels = list(z_BCZHW.shape), self.out_channels
        if len(shape) != 5 or shape[1] != channels:
            raise ValueError(f"a latent is [B, {channels}, T, H, W], not {shape}")
        need = self._latent_frames(max(num_frames, 1))
        if num_frames < 1 or shape[2] != need:
            what = f"a latent of {shape[2]} frames"
            raise ValueError(f"{what} cannot give {num_frames}: those need {need}")
        z = (z_BCZHW.float() * self.scale.float() + self.shift.float()).to(self.dtype)
        frames = self._in_chunks(z, num_frames, encoding=False)
        images = rearrange(frames, "b c t h w -> (b t) c h w")
        video = self.spatial_vae.decode(images / FACTOR, self.budget)
        return rearrange(video, "(b t) c h w -> b c t h w", b=len(z_BCZHW))

    def _check(self, video: Tensor) -> None:
        channels, edge = self.settings.spatial.in_channels, self.settings.spatial.factor
        shape, kind = list(video.shape), str(video.dtype).removeprefix("torch.")
        if len(shape) != 5 or shape[1] != channels or not video.is_floating_point():
            form = f"[B, {channels}, T, H, W] of floats in -1..1"
            raise ValueError(f"a video is {form}, not {kind} {shape}")
        if shape[2] < 1 or min(shape[3:]) < edge:
            least = f"1 frame of {edge} x {edge} pixels"
            raise ValueError(f"a video needs {least} at least, not {shape[2:]}")

    def _frame_posterior(self, video_BCTHW: Tensor) -> Posterior:
        images = rearrange(video_BCTHW, "b c t h w -> (b t) c h w")
        return Posterior.of(self.spatial_vae.moments(images, self.budget)).scaled(FACTOR)

    def _chunk_posterior(self, frames_NCHW: Tensor, batch: int) -> Posterior:
        frames = rearrange(frames_NCHW, "(b t) c h w -> b c t h w", b=batch)
        moments = self._in_chunks(frames.to(self.dtype), frames.shape[2], encoding=True)
        return Posterior.of(moments).moved(-self.shift.float()).scaled(1 / self.scale.float())

    def _in_chunks(self, x_BCTHW: Tensor, frames: int, *, encoding: bool) -> Tensor:
        """Through the temporal network; all whole chunks at once as far as memory allows."""
        chunk = self.micro_frame_size or frames
        whole, rest = divmod(frames, chunk)
        latents = self.temporal_vae.length(chunk)
        split = whole * (chunk if encoding else latents)
        parts = []
        last = min(rest, 1)
        pieces = (x_BCTHW[:, :, :split], whole, chunk), (x_BCTHW[:, :, split:], last, rest)
        for piece, count, length in pieces:
            if count == 0:
                continue
            chunks = rearrange(piece, "b c (n t) h w -> (b n) c t h w", n=count)
            encode_bytes, decode_bytes = self.temporal_vae.frame_bytes(length, x_BCTHW.itemsize)
            decode = partial(self.temporal_vae.decode, frames=length)
            network = self.temporal_vae.moments if encoding else decode
            each = (encode_bytes if encoding else decode_bytes) * math.prod(piece.shape[3:])
            out = in_batches(network, chunks, each, self.budget)
            parts.append(rearrange(out, "(b n) c t h w -> b c (n t) h w", n=count))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
