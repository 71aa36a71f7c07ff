"""Between videos and latents: the interface, and the identity for training in pixel space."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trainer.errors import ConfigError

# B batch · C channels · T,H,W frames, height, width in pixels
# ITU-R BT.601, as in the h264 clips' own luma
LUMA_WEIGHTS = (0.299, 0.587, 0.114)
LOGVAR_RANGE = (-30.0, 20.0)  # upstream's clamp

Generator = torch.Generator | None


class Posterior(NamedTuple):
    """A normal distribution per latent value: mean and log-variance, fp32; -inf is no spread."""

    mean: Tensor
    logvar: Tensor

    @classmethod
    def of(cls, moments: Tensor) -> Posterior:
        """From a network's output, mean and log-variance one after the other along dim 1."""
        # fp32: exp of a bf16 log-variance is wrong by 6 % at -15
        mean, logvar = moments.float().chunk(2, dim=1)
        return cls(mean, logvar.clamp(*LOGVAR_RANGE))

    def at(self, noise: Tensor) -> Tensor:
        """The value of a draw of standard noise."""
        return torch.addcmul(self.mean, noise.to(self.mean), (0.5 * self.logvar).exp())

    def sample(self, generator: Generator = None) -> Tensor:
        """With noise drawn where the generator lives (None: on the mean's device)."""
        device = self.mean.device if generator is None else generator.device
        return self.at(torch.randn(self.mean.shape, generator=generator, device=device))

    def moved(self, by: Tensor) -> Posterior:
        return Posterior(self.mean + by, self.logvar)

    def scaled(self, by: float | Tensor) -> Posterior:
        """Of the value times `by`, which is positive."""
        spread = torch.as_tensor(by, dtype=torch.float32, device=self.mean.device)
        return Posterior(self.mean * by, self.logvar + 2 * spread.log())


def to_signed(pixels: Tensor) -> Tensor:
    """fp32 from -1 to 1. Bytes are scaled; what `resize="torch"` gives is in that range already."""
    return pixels.float() / 127.5 - 1 if pixels.dtype == torch.uint8 else pixels.float()


class VideoVAE(Protocol):
    """What training and sampling need of a VAE; videos are [B, C, T, H, W] in -1..1."""

    @property
    def out_channels(self) -> int: ...
    def encode(self, video_BCTHW: Tensor, generator: Generator = None) -> Tensor: ...
    def encode_posterior(self, video_BCTHW: Tensor) -> Posterior: ...
    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor: ...
    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]: ...
    def to(self, device: torch.device | str, /) -> Any: ...


class IdentityVAE:
    """Pixels are the latent: 3 channels as they are, or 1 channel of luma. No parameters."""

    def __init__(self, channels: int = 3) -> None:
        if channels not in (1, 3):
            raise ConfigError(f"vae.channels is 1 (luma) or 3, not {channels}")
        self.out_channels = channels

    def encode(self, video_BCTHW: Tensor, generator: Generator = None) -> Tensor:
        """[B, 3, T, H, W] in -1..1 to [B, channels, T, H, W], dtype kept; nothing is drawn."""
        if self.out_channels == 3:
            return video_BCTHW
        weights = torch.tensor(LUMA_WEIGHTS, dtype=video_BCTHW.dtype, device=video_BCTHW.device)
        return torch.einsum("bcthw,c->bthw", video_BCTHW, weights)[:, None]

    def encode_posterior(self, video_BCTHW: Tensor) -> Posterior:
        mean = self.encode(video_BCTHW).float()
        return Posterior(mean, torch.full_like(mean, -math.inf))

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor:
        """[B, 3, num_frames, H, W]; luma becomes grey."""
        if z_BCTHW.shape[2] != num_frames:
            raise ValueError(f"latent of {z_BCTHW.shape[2]} frames cannot give {num_frames}")
        return z_BCTHW.expand(-1, 3, -1, -1, -1)

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        return video_size

    def to(self, device: torch.device | str) -> IdentityVAE:
        return self
