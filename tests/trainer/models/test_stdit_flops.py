"""The FLOP count equals what torch counts while the model runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.flops import flops_by_part, forward_flops
from trainer.models.stdit import STDiT3, STDiT3Config
from trainer.models.stdit_config import PRESETS

SMALL = {"depth": 2, "hidden_size": 48, "num_heads": 4, "caption_channels": 20}


def counted(config: STDiT3Config, batch: int, size: tuple[int, int, int], text: int) -> int:
    model = STDiT3(config).eval()
    if config.skip_y_embedder:
        y, mask = torch.zeros(1, batch * text, config.hidden_size), [text] * batch
    else:
        y, mask = torch.zeros(batch, 1, text, config.caption_channels), None
    sizes = dict.fromkeys(("fps", "height", "width"), torch.full((batch,), 24.0))
    # torch counts attention only where it is spelled out as products
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, 4, *size), torch.zeros(batch), y, mask, **sizes)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("options", "batch", "size", "text"),
    [
        ({}, 2, (3, 6, 8), 5),
        ({"patch_size": (2, 2, 2), "pred_sigma": False}, 1, (5, 7, 4), 3),
        ({"mlp_ratio": 2.0, "skip_y_embedder": True}, 3, (1, 4, 4), 7),
    ],
)
def test_the_count_is_what_torch_counts(
    options: dict[str, Any], batch: int, size: tuple[int, int, int], text: int
) -> None:
    config = STDiT3Config(**{**SMALL, **options})  # type: ignore[arg-type]
    assert forward_flops(config, batch, *size, text) == counted(config, batch, size, text)


def test_xl_costs_what_the_literature_says_per_token() -> None:
    """2.08 GFLOP of linear layers a token at XL/2; attention comes on top."""
    config = STDiT3Config(**PRESETS["STDiT3-XL/2"])  # type: ignore[arg-type]
    per_token = forward_flops(config, 1, 30, 45, 80, 300) / (30 * 23 * 40)
    assert 2.08e9 < per_token < 1.25 * 2.08e9


def test_recomputing_every_block_is_nearly_a_forward_pass() -> None:
    parts = flops_by_part(STDiT3Config(), 2, 15, 30, 40, 300)
    blocks = parts.recompute(range(2 * 28))
    assert parts.total * 0.97 < blocks < parts.total
    assert parts.recompute([0]) == parts.spatial_block > parts.recompute([1])
    assert parts.recompute([]) == 0
