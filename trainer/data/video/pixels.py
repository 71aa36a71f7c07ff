"""Decoded pixels as a VAE takes them."""

from __future__ import annotations

import torch
from torch import Tensor


def to_signed(pixels: Tensor) -> Tensor:
    """fp32 from -1 to 1. Bytes are scaled; what `resize="torch"` gives is in that range already."""
    return pixels.float() / 127.5 - 1 if pixels.dtype == torch.uint8 else pixels.float()
