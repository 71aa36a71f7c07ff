"""Open-Sora's VAE with small numbers and random weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainer.models.memory import MemoryBudget
from trainer.models.vae.spatial import SpatialSettings
from trainer.models.vae.temporal import TemporalSettings
from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

SETTINGS = VideoVAESettings(
    spatial=SpatialSettings(
        block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=4
    ),
    temporal=TemporalSettings(filters=8, num_res_blocks=1, num_groups=4),
)


def tiny_vae(
    settings: VideoVAESettings = SETTINGS, budget: MemoryBudget | None = None
) -> OpenSoraVAE:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = OpenSoraVAE(settings, budget)
        for parameter in vae.parameters():  # norms and biases that do something
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vae


def clip(frames: int, height: int = 16, width: int = 24, batch: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, frames, height, width, generator=generator) * 2 - 1


def save_vae(vae: OpenSoraVAE, folder: Path) -> None:
    """Weights and sizes as `load_vae` reads them; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in vae.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    document = {"model_type": "VideoAutoencoderPipeline", **asdict(vae.settings)}
    (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n")
