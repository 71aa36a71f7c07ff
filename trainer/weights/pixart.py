"""The start from PixArt: an image model's tensors under the names and shapes of STDiT3.

Its blocks become the spatial ones, its patch embedding gets a time axis. What it has not (temporal
blocks, frame rate, query and key norms, rotation) stays as the model made it; a fresh STDiT3's
temporal blocks add nothing, so the first step sees the image model on every frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# Of PixArt's tensors, those a video model computes (positions) or has no use for (alpha's size
# inputs).
_LEFT_OUT = re.compile(r"pos_embed|csize_embedder\.|ar_embedder\.")
_NEW = re.compile(
    r"temporal_blocks\.|fps_embedder\.|rope\.|spatial_blocks\.\d+\.attn\.[qk]_norm\.weight$"
)
PATCH, NULL_TEXT = "x_embedder.proj.weight", "y_embedder.y_embedding"
FINAL = ("final_layer.linear.weight", "final_layer.linear.bias")


def is_new(name: str) -> bool:
    """Whether STDiT3 has this tensor and no PixArt does."""
    return _NEW.match(name) is not None


def to_stdit(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """PixArt's tensors for a model with the state dict `wanted`, and the names left out."""
    left_out = [name for name in tensors if _LEFT_OUT.match(name)]
    result = {
        f"spatial_{name}" if name.startswith("blocks.") else name: tensor
        for name, tensor in tensors.items()
        if name not in set(left_out)
    }
    times = wanted[PATCH].shape[2] if PATCH in wanted else 1
    if PATCH in result and result[PATCH].ndim == 4:
        result[PATCH] = _inflated(result[PATCH], times)
    for name in FINAL:
        if times > 1 and name in result:
            # Each of the patch's frames starts as the one image (values are laid out frame by
            # frame).
            result[name] = torch.cat([result[name]] * times)
    if NULL_TEXT in result and NULL_TEXT in wanted:
        result[NULL_TEXT] = _of_length(result[NULL_TEXT], len(wanted[NULL_TEXT]))
    return result, left_out


def _inflated(weight_DCHW: Tensor, times: int) -> Tensor:
    """[D, C, T, H, W] whose answer to a still clip is the image model's to one of its frames."""
    return weight_DCHW.unsqueeze(2).expand(-1, -1, times, -1, -1) / times


def _of_length(rows_LC: Tensor, length: int) -> Tensor:
    """Cut, or longer by repeats of the last row, as upstream does."""
    missing = length - len(rows_LC)
    if missing <= 0:
        return rows_LC[:length]
    return torch.cat([rows_LC, rows_LC[-1:].expand(missing, -1)])
