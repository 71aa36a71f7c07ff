"""From a batch to what the model takes: latents and conditions."""

# B clips · C channels · T,H,W latent frames, height, width

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.data.loader.build_loader import latents_of
from trainer.data.loader.microbatch import Batch
from trainer.models.vae.interface import to_signed


@torch.no_grad()
def encode(
    vae: Any, text: Any, device: torch.device, batch: Batch
) -> tuple[Tensor, dict[str, Tensor]]:
    """Latents [B, C, T, H, W] of a batch and the model's other inputs, by torch's own generators;
    the mask of the captions stays on the host, where its values can be read without waiting."""
    conditions = {name: getattr(batch, name) for name in ("fps", "height", "width", "num_frames")}
    if batch.latents is not None:  # of a feature cache
        z_BCTHW = latents_of(batch.latents.to(device, non_blocking=True))
        conditions |= {"y": batch.y, "mask": batch.mask}
    else:
        assert batch.video is not None
        video = to_signed(batch.video.to(device, non_blocking=True))
        z_BCTHW = vae.encode(video)
        conditions["y"], conditions["mask"] = text.encode(batch.text)
    mask_BL = conditions.pop("mask")
    moved = {name: value.to(device, non_blocking=True) for name, value in conditions.items()}
    return z_BCTHW, {**moved, "mask": mask_BL}
