"""Where a token stands: its frame as a rotation of queries and keys, its place as an added wave.

Two modes. `fp32-exact` is the definition. `bf16-compat` is what Open-Sora 1.2 saw in its bf16 runs,
the published weights' training among them: frequencies, angles, sizes and frame rates rounded to 8
bits (angles off by up to 0.44 rad at 120 latent frames, the wave by up to 0.106 at 45x80 patches).
The mode belongs to a run, never to weights or their config.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainer.errors import ConfigError

# B batch · T frames · D width · E width of a head · J rotated pairs of a head, E/2
EXACT, COMPAT = "fp32-exact", "bf16-compat"
POSITIONS = (EXACT, COMPAT)


def require_known(mode: str) -> str:
    """The mode itself. Raises ConfigError."""
    if mode not in POSITIONS:
        raise ConfigError(f"positions must be one of {', '.join(POSITIONS)}; not {mode!r}")
    return mode


def as_seen(values: Tensor, mode: str) -> Tensor:
    """Sizes and frame rates of clips, as a run of that mode knows them."""
    return values.bfloat16().to(values.dtype) if mode == COMPAT else values


def sinusoid(values_B: Tensor, width: int, max_period: float = 10_000.0) -> Tensor:
    """Cosines first, then sines, of `width`/2 geometric frequencies; fp32 [B, width]."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=values_B.device)
    exponents = -math.log(max_period) * steps / half
    # fp64: the fp32 exp differs in its last bit between CPUs, and timestep 900 multiplies that
    angles = values_B[:, None].float() * exponents.double().exp().float()
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def grid_embedding(
    width: int, rows: int, columns: int, scale: Tensor, device: torch.device, mode: str = EXACT
) -> Tensor:
    """Positions of a frame's patches, [rows*columns, width] in fp32; the column's half is first.

    `scale` (one number) is the frame's size in units the model was trained on; positions are spread
    so that grids of another shape but the same number of patches cover the same range.
    """
    quarter = width // 4
    base = round(math.sqrt(rows * columns))
    exponents = torch.arange(quarter, dtype=torch.float32, device=device) / quarter
    frequencies = as_seen(1.0 / 10_000.0**exponents, mode)

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

    def __init__(self, head_width: int, theta: float = 10_000.0) -> None:
        super().__init__()
        self.head_width, self.theta = head_width, theta
        # A parameter because upstream's state dict has it as one; no gradient ever.
        self.freqs = nn.Parameter(self._exact(None), requires_grad=False)

    def _exact(self, device: torch.device | None) -> Tensor:
        even = torch.arange(0, self.head_width, 2, dtype=torch.float32, device=device)
        return 1.0 / self.theta ** (even / self.head_width)

    def forward(self, frames: int, mode: str = EXACT) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each fp32 [T, J].

        Computed anew rather than read from `freqs`: a model cast to bf16 would turn frame 120 by
        0.44 rad too little or too much, and that should not depend on the model's dtype.
        """
        device = self.freqs.device
        places = torch.arange(frames, dtype=torch.float32, device=device)
        if mode == EXACT:
            angles_TJ = places[:, None] * self._exact(device)
            return angles_TJ.cos(), angles_TJ.sin()
        angles_TJ = places.bfloat16()[:, None] * self._exact(device).bfloat16()
        return angles_TJ.cos().float(), angles_TJ.sin().float()
