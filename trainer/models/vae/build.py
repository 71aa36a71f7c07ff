"""Between videos and latents: the seam, and the identity for training in pixel space.

A VAE has `out_channels`, `encode(video_BCTHW in -1..1) -> z`, `decode(z, num_frames) -> video`,
`latent_size((T, H, W))`, and `encode_posterior` and `encode_mean` for caches. Open-Sora 1.2's is
trainer.models.vae.video.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.errors import ConfigError
from trainer.models.vae.posterior import Posterior

# B batch · C channels · T,H,W frames, height, width in pixels
# ITU-R BT.601, as in the h264 clips' own luma
LUMA_WEIGHTS = (0.299, 0.587, 0.114)
IDENTITY_CHANNELS = (1, 3)
VIDEO_VAES = ("OpenSoraVAE_V1_2", "VideoAutoencoderPipeline")  # upstream's two names of one model

Generator = torch.Generator | None


class VideoVAE(Protocol):
    """What training and sampling need of a VAE."""

    @property
    def out_channels(self) -> int: ...

    def encode(self, video_BCTHW: Tensor, generator: Generator = None) -> Tensor: ...

    def encode_posterior(self, video_BCTHW: Tensor) -> Posterior: ...

    def encode_mean(self, video_BCTHW: Tensor) -> Tensor: ...

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor: ...

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]: ...

    def to(self, device: torch.device | str, /) -> Any: ...


class IdentityVAE:
    """Pixels are the latent: 3 channels as they are, or 1 channel of luma. No parameters."""

    def __init__(self, channels: int = 3) -> None:
        if channels not in IDENTITY_CHANNELS:
            raise ValueError(f"an identity VAE has 1 (luma) or 3 channels, not {channels}")
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

    def encode_mean(self, video_BCTHW: Tensor) -> Tensor:
        return self.encode(video_BCTHW)

    def decode(self, z_BCTHW: Tensor, num_frames: int) -> Tensor:
        """[B, 3, num_frames, H, W]; luma becomes grey."""
        if z_BCTHW.shape[2] != num_frames:
            raise ValueError(f"latent of {z_BCTHW.shape[2]} frames cannot give {num_frames}")
        return z_BCTHW.expand(-1, 3, -1, -1, -1)

    def latent_size(self, video_size: tuple[int, int, int]) -> tuple[int, int, int]:
        return video_size

    def to(self, device: torch.device | str) -> IdentityVAE:
        return self


def build_vae(settings: Any, dtype: torch.dtype = torch.float32) -> VideoVAE:
    """The VAE of a config's `vae` section, on the CPU; `dtype` is the networks'.

    Raises ConfigError for an unknown type or no weights, CheckpointError for weights that cannot be
    read or are another model's.
    """
    kind = settings.type
    if kind == "identity":
        if settings.channels not in IDENTITY_CHANNELS:
            raise ConfigError(f"vae.channels is 1 (luma) or 3, not {settings.channels}")
        return IdentityVAE(settings.channels)
    if kind not in VIDEO_VAES:
        names = ", ".join(("identity", *VIDEO_VAES))
        raise ConfigError(f"vae.type {kind!r} is not known; there is {names}")
    if settings.from_pretrained is None:
        raise ConfigError(
            f"vae.from_pretrained must name the weights of {kind}: a file, a folder or a hub id",
            hint="--vae.from-pretrained hpcai-tech/OpenSora-VAE-v1.2",
        )
    # Here because it brings torch modules that the identity does not need.
    from trainer.models.memory_budget import MemoryBudget
    from trainer.models.vae.video import load_vae

    limit = None if settings.memory_gb is None else int(settings.memory_gb * 1e9)
    own = {name: getattr(settings, name) for name in ("micro_frame_size", "shift", "scale")}
    return load_vae(
        settings.from_pretrained, dtype=dtype, budget=MemoryBudget(limit), overrides=own
    )
