"""Between videos and latents: the seam, and the identity for training in pixel space.

A VAE has `out_channels`, `encode(video_BCTHW in -1..1) -> z`, `decode(z, num_frames) -> video` and
`latent_size((T, H, W))`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from trainer.errors import ConfigError

# B batch · C channels · T,H,W frames, height, width in pixels
# ITU-R BT.601, as in the h264 clips' own luma
LUMA_WEIGHTS = (0.299, 0.587, 0.114)
IDENTITY_CHANNELS = (1, 3)


class VideoVAE(Protocol):
    """What training and sampling need of a VAE."""

    out_channels: int

    def encode(self, video_BCTHW: Tensor) -> Tensor: ...

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor: ...

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]: ...

    def to(self, device: torch.device | str) -> VideoVAE: ...


class IdentityVAE:
    """Pixels are the latent: 3 channels as they are, or 1 channel of luma. No parameters."""

    def __init__(self, channels: int = 3) -> None:
        if channels not in IDENTITY_CHANNELS:
            raise ValueError(f"an identity VAE has 1 (luma) or 3 channels, not {channels}")
        self.out_channels = channels

    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """[B, 3, T, H, W] in -1..1 to [B, channels, T, H, W], dtype kept."""
        if self.out_channels == 3:
            return video_BCTHW
        weights = torch.tensor(LUMA_WEIGHTS, dtype=video_BCTHW.dtype, device=video_BCTHW.device)
        return torch.einsum("bcthw,c->bthw", video_BCTHW, weights)[:, None]

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor:
        """[B, 3, num_frames, H, W]; luma becomes grey."""
        if z_BCTHW.shape[2] != num_frames:
            raise ValueError(f"latent of {z_BCTHW.shape[2]} frames cannot give {num_frames}")
        return z_BCTHW.expand(-1, 3, -1, -1, -1)

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        return video_size

    def to(self, device: torch.device | str) -> IdentityVAE:
        return self


def build_vae(kind: str, channels: int = 3) -> VideoVAE:
    """The VAE of a config's `vae.type`; `channels` is the identity's.

    Raises ConfigError for a type that is unknown or not built yet.
    """
    if kind in ("OpenSoraVAE_V1_2", "VideoAutoencoderPipeline"):
        raise ConfigError(
            f"vae.type {kind} is not built yet: this version trains in pixel space",
            hint="vae = dict(type='identity', channels=3)",
        )
    if kind != "identity":
        raise ConfigError(f"vae.type {kind!r} is not known; there is 'identity'")
    if channels not in IDENTITY_CHANNELS:
        raise ConfigError(f"vae.channels is 1 (luma) or 3, not {channels}")
    return IdentityVAE(channels)
