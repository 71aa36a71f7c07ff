"""PixArt's tensors as STDiT3's: blocks become spatial ones; what is new stays as it was made."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# Of PixArt's tensors, positions are computed and alpha's size inputs are not used.
_LEFT_OUT = re.compile(r"pos_embed|csize_embedder\.|ar_embedder\.")
# Of STDiT3's tensors, those that no PixArt has.
NEW = re.compile(
    r"temporal_blocks\.|fps_embedder\.|rope\.|spatial_blocks\.\d+\.attn\.[qk]_norm\.weight$"
)
PATCH, NULL_TEXT = "x_embedder.proj.weight", "y_embedder.y_embedding"
FINAL = ("final_layer.linear.weight", "final_layer.linear.bias")


def to_stdit(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """PixArt's tensors for a model with the state dict `wanted`, and the names left out."""
    left_out = [name for name in tensors if _LEFT_OUT.match(name)]
    kept = {name: tensor for name, tensor in tensors.items() if name not in set(left_out)}
    result = {re.sub(r"^blocks\.", "spatial_blocks.", name): kept[name] for name in kept}
    times = wanted[PATCH].shape[2] if PATCH in wanted else 1
    if PATCH in result and result[PATCH].ndim == 4:
        # [D, C, T, H, W] whose answer to a still clip is the image model's to one of its frames
        result[PATCH] = result[PATCH].unsqueeze(2).expand(-1, -1, times, -1, -1) / times
    for name in FINAL:
        if times > 1 and name in result:  # each frame of a patch starts as the image
            result[name] = torch.cat([result[name]] * times)
    if NULL_TEXT in result and NULL_TEXT in wanted:
        # Cut, or longer by repeats of the last row, as upstream does.
        rows, length = result[NULL_TEXT], len(wanted[NULL_TEXT])
        rest = rows[-1:].expand(max(0, length - len(rows)), -1)
        result[NULL_TEXT] = torch.cat([rows[:length], rest])
    return result, left_out
