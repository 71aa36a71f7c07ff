"""Position embeddings of a token: rotary over frames, sinusoidal over places in a frame.

`fp32-exact` is the definition. `bf16-compat` is what Open-Sora 1.2's bf16 runs saw, also those of
the published weights: frequencies, angles, sizes and frame rates in 8 bits (angles off by up to
0.44 rad at 120 latent frames, the wave by 0.106 at 45x80 patches). The mode belongs to a run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# B batch · T frames · D width · E width of a head · J rotated pairs of a head, E/2
PERIOD = 10_000.0  # longest wave
EXACT, COMPAT = "fp32-exact", "bf16-compat"
POSITIONS = (EXACT, COMPAT)


def as_seen(values: Tensor, mode: str) -> Tensor:
    """Sizes and frame rates of clips, as a run of that mode knows them."""
    return values.bfloat16().to(values.dtype) if mode == COMPAT else values


def sinusoid(values_B: Tensor, width: int) -> Tensor:
    """Cosines first, then sines, of `width`/2 geometric frequencies; fp32 [B, width]."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=values_B.device)
    exponents = -math.log(PERIOD) * steps / half
    # fp64: the fp32 exp differs in its last bit between CPUs, and timestep 900 multiplies that
    angles = values_B[:, None].float() * exponents.double().exp().float()
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def grid_embedding(
    width: int, rows: int, columns: int, scale: Tensor, device: torch.device, mode: str = EXACT
) -> Tensor:
    """Positions of patches, fp32 [rows*columns, width], columns first; `scale`: frame size."""
    quarter = width // 4
    base = round(math.sqrt(rows * columns))
    exponents = torch.arange(quarter, dtype=torch.float32, device=device) / quarter
    frequencies = as_seen(1.0 / PERIOD**exponents, mode)

    def wave(count: int) -> Tensor:
        places = torch.arange(count, dtype=torch.float32, device=device) / scale * (base / count)
        angles = places[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    half = width // 2
    per_column = wave(columns)[None].expand(rows, columns, half)
    per_row = wave(rows)[:, None].expand(rows, columns, half)
    return torch.cat([per_column, per_row], dim=-1).reshape(rows * columns, width)


class RotaryFrequencies(nn.Module):
    """Rotation of queries and keys by frame number, in interleaved pairs over the head."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        # A parameter because upstream's state dict has it as one; no gradient ever.
        self.freqs = nn.Parameter(self._exact(None), requires_grad=False)

    def _exact(self, device: torch.device | None) -> Tensor:
        even = torch.arange(0, self.head_width, 2, dtype=torch.float32, device=device)
        return 1.0 / PERIOD ** (even / self.head_width)

    def forward(self, frames: int, mode: str = EXACT) -> tuple[Tensor, Tensor]:
        """Cosines and sines, fp32 [T, J], whatever the model's dtype: not read from `freqs`."""
        device = self.freqs.device
        places = torch.arange(frames, dtype=torch.float32, device=device)
        dtype = torch.float32 if mode == EXACT else torch.bfloat16
        angles_TJ = places.to(dtype)[:, None] * self._exact(device).to(dtype)
        return angles_TJ.cos().float(), angles_TJ.sin().float()
