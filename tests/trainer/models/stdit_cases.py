"""Small STDiT3 models and inputs, shared by the tests of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.stdit import STDiT3, build_stdit

# B batch · C channels · T,H,W latent frames, height, width · L text tokens
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "depth": 2,
    "num_heads": 2,
    "caption_channels": 16,
    "model_max_length": 6,
    "in_channels": 3,
}


def small_model(seed: int = 0, **options: Any) -> STDiT3:
    """All weights random: as made, a fresh model's temporal blocks do nothing."""
    torch.manual_seed(seed)
    model = build_stdit("STDiT3", **{**SMALL, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter is not model.rope.freqs:
                parameter.normal_(std=0.2)
    return model.eval()


def batch(
    size: tuple[int, int, int] = (4, 6, 6), count: int = 2, text: int = 6, seed: int = 1
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x_BCTHW": torch.randn(count, 3, *size, generator=generator),
        "timestep_B": torch.linspace(100, 900, count),
        "y": torch.randn(count, 1, text, 16, generator=generator),
        "mask": torch.ones(count, text, dtype=torch.int64),
        "fps": torch.full((count,), 24.0),
        "height": torch.full((count,), 256.0),
        "width": torch.full((count,), 320.0),
    }


@torch.no_grad()
def run(model: nn.Module, inputs: dict[str, Tensor], **changes: Any) -> Tensor:
    return model(**{**inputs, **changes})
