"""A block of STDiT3: attention (within or across frames), then text, then MLP.

In half precision on a GPU, and anywhere with products in fp8, its parts run by `block.branches`;
elsewhere by torch's operations, which torch.compile may put together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.models import layers
from trainer.models.attention import calls, frames
from trainer.models.attention.calls import Packed
from trainer.models.block import branches, rows
from trainer.models.fused import Rotation, add_gated, norm_modulate, split_heads
from trainer.models.stdit_config import STDiT3Config

# B batch · T frames · S tokens of a frame · D width · F 1 or T: a modulation per clip or per frame
# R rows: tokens of all clips · N heads · E width of a head


class STDiT3Block(nn.Module):
    """Attention (within or across frames), then text, then MLP."""

    def __init__(self, config: STDiT3Config, temporal: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.temporal = temporal
        self.fused = True  # kernels of `block`, where they run
        self.in_fp8 = False  # its large products
        self.attn = layers.SelfAttention(width, config.num_heads, config.qk_norm)
        self.cross_attn = layers.CrossAttention(width, config.num_heads)
        self.mlp = layers.Mlp(width, int(width * config.mlp_ratio), width)
        self.scale_shift_table = nn.Parameter(torch.randn(6, width) / width**0.5)

    def forward(
        self,
        x_BTSD: Tensor,
        y: Tensor,
        real: Tensor | Packed | None,
        t_BF6D: Tensor,
        rotation: Rotation | None,
        kept_B6: Tensor | None = None,
    ) -> Tensor:
        """`kept_B6` multiplies each clip's modulations: stochastic depth, by their gates."""
        table_BF6D = self.scale_shift_table + t_BF6D
        if kept_B6 is not None:
            table_BF6D = table_BF6D * kept_B6[:, None, :, None]
        if self.in_fp8 or (self.fused and is_usable(x_BTSD, self.attn.heads)):
            return run_fused(self, x_BTSD, y, real, table_BF6D, rotation)
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = table_BF6D.unsqueeze(-2).unbind(
            2
        )  # one value for all S tokens
        branch = self.attn(norm_modulate(x_BTSD, shift, scale), self.temporal, rotation)
        x_BTSD = add_gated(x_BTSD, branch, gate)
        # quirk: the text branch has neither norm nor gate
        x_BTSD = x_BTSD + self.cross_attn(x_BTSD, y, real)
        branch = self.mlp(norm_modulate(x_BTSD, shift_mlp, scale_mlp))
        return add_gated(x_BTSD, branch, gate_mlp)


def is_usable(x_BTSD: Tensor, heads: int) -> bool:
    """Whether a block takes these tokens here, and torch does not compile it."""
    if torch.compiler.is_compiling() or not rows.has_kernels(x_BTSD):
        return False
    device = "cuda" if frames.IS_INTERPRETED else x_BTSD.device.type
    item = 2 if frames.IS_INTERPRETED else x_BTSD.element_size()
    return rows.fits(device, item, x_BTSD.shape[-1], x_BTSD.shape[-1] // heads)


def run_fused(
    block: STDiT3Block,
    x_BTSD: Tensor,
    y: Tensor,
    real: Tensor | Packed | None,
    table_BF6D: Tensor,
    rotation: Rotation | None,
) -> Tensor:
    """What `block` makes of tokens, [B, T, S, D], by `block.branches`."""
    shift, scale, gate, *of_mlp = table_BF6D.unbind(2)
    gates = [each.flatten(0, 1) for each in (gate, of_mlp.pop())]
    shift, scale, *of_mlp = (each.flatten(0, 1) for each in (shift, scale, *of_mlp))
    size, text_of = x_BTSD.shape, block.cross_attn
    seen, x_RD = _attended(block, x_BTSD, shift, scale, rotation)
    q_RD, x_RD = branches.GatedQueries.apply(
        *(x_RD, seen.reshape(x_RD.shape), gates[0]),
        *(part for linear in (block.attn.proj, text_of.q_linear) for part in _of(linear)),
        block.in_fp8,
    )
    text = text_of.attended(q_RD.view(size), y, real).reshape(x_RD.shape)
    x_RD = branches.TextThenMlp.apply(
        *(x_RD, text, *of_mlp, gates[1]),
        *(part for name in (text_of.proj, block.mlp.fc1, block.mlp.fc2) for part in _of(name)),
        block.in_fp8,
    )
    # No view for autograd: FSDP2 hooks what a block returns, and warns of views in every run.
    return torch.ops.aten._unsafe_view(x_RD, size)


def _attended(
    block: STDiT3Block,
    x_BTSD: Tensor,
    shift_GD: Tensor,
    scale_GD: Tensor,
    rotation: Rotation | None,
) -> tuple[Tensor, Tensor]:
    """Attended values, [B, T, S, N, E], and the tokens that go on beside them, [R, D]."""
    attn, norms, size = block.attn, block.attn.norms(), x_BTSD.shape[:3]
    inputs = x_BTSD.flatten(0, 2), shift_GD, scale_GD, *_of(attn.qkv)
    by_frames = block.temporal and _takes_frames(attn, x_BTSD)
    if norms is not None and rotation is None and not by_frames:
        *heads, x_RD = branches.NormHeads.apply(*inputs, *norms, block.in_fp8)
        q, k, v = (part.view(*size, *part.shape[1:]) for part in heads)
    else:
        qkv, x_RD = branches.NormLinear.apply(*inputs, block.in_fp8)
        qkv = qkv.view(*size, -1)
        if by_frames:
            parts, turn = qkv.unflatten(-1, (3, attn.heads, -1)), rotation or (None, None)
            return branches.FramesAttention.apply(parts, *(norms or (None, None)), *turn), x_RD
        q, k, v = split_heads(qkv, attn.heads, norms, rotation, block.temporal)
    attend = calls.across_frames if block.temporal else calls.within_frames
    return attend(q, k, v, attn.table), x_RD


def _takes_frames(attn: layers.SelfAttention, x_BTSD: Tensor) -> bool:
    """Whether the kernel across frames takes whole projections of these tokens here."""
    count = x_BTSD.shape[1]
    if count > frames.MOST_PREPARED or attn.table.choose("temporal", count) != "frames":
        return False
    return frames.is_usable(x_BTSD.unflatten(-1, (attn.heads, -1)))


def _of(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight, linear.bias
