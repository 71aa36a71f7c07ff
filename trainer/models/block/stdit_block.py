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

    def __init__(self, config: STDiT3Config, temporal: bool, drop_probability: float) -> None:
        super().__init__()
        width = config.hidden_size
        self.temporal, self.drop_probability = temporal, drop_probability
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
    ) -> Tensor:
        table_BF6D = self.scale_shift_table + t_BF6D
        if self.in_fp8 or (self.fused and is_usable(x_BTSD, self.attn.heads)):
            return run_fused(self, x_BTSD, y, real, table_BF6D, rotation)
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = table_BF6D.unsqueeze(-2).unbind(
            2
        )  # one value for all S tokens
        branch = self.attn(norm_modulate(x_BTSD, shift, scale), self.temporal, rotation)
        x_BTSD = add_gated(x_BTSD, branch, self.kept(gate))
        # quirk: the text branch has neither norm nor gate
        x_BTSD = x_BTSD + self.cross_attn(x_BTSD, y, real)
        branch = self.mlp(norm_modulate(x_BTSD, shift_mlp, scale_mlp))
        return add_gated(x_BTSD, branch, self.kept(gate_mlp))

    def kept(self, gate_BF1D: Tensor) -> Tensor:
        """Stochastic depth: a gate of 0 leaves the branch out for a clip."""
        return layers.drop_path(gate_BF1D, self.drop_probability, self.training)


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
    gates = [block.kept(each).flatten(0, 1) for each in (gate, of_mlp.pop())]
    shift, scale, *of_mlp = (each.flatten(0, 1) for each in (shift, scale, *of_mlp))
    size, x_RD = x_BTSD.shape, x_BTSD.flatten(0, 2)
    qkv, x_RD = branches.NormLinear.apply(x_RD, shift, scale, *_of(block.attn.qkv), block.in_fp8)
    seen = _attention(block.attn, qkv.view(*size[:3], -1), block.temporal, rotation)
    x_RD = branches.GatedResidual.apply(
        x_RD, seen.reshape(x_RD.shape), gates[0], *_of(block.attn.proj), block.in_fp8
    )
    text_of = block.cross_attn
    q_RD, x_RD = branches.PassingLinear.apply(x_RD, *_of(text_of.q_linear), block.in_fp8)
    text = text_of.attended(q_RD.view(size), y, real).reshape(x_RD.shape)
    x_RD = branches.TextThenMlp.apply(
        *(x_RD, text, *of_mlp, gates[1]),
        *(part for name in (text_of.proj, block.mlp.fc1, block.mlp.fc2) for part in _of(name)),
        block.in_fp8,
    )
    # No view for autograd: FSDP2 hooks what a block returns, and warns of views in every run.
    return torch.ops.aten._unsafe_view(x_RD, size)


def _attention(
    attn: layers.SelfAttention, qkv_BTSD: Tensor, across_frames: bool, rotation: Rotation | None
) -> Tensor:
    """Attended values, [B, T, S, N, E], of a projection [B, T, S, 3 N E]."""
    parts = qkv_BTSD.unflatten(-1, (3, attn.heads, -1))
    norms = attn.norms()
    if across_frames:
        one = parts[..., 0, :, :]
        if (
            one.shape[1] <= frames.MOST_PREPARED
            and attn.table.choose("temporal", one.shape[1]) == "frames"
            and frames.is_usable(one)
        ):
            turn = rotation or (None, None)
            return branches.FramesAttention.apply(parts, *(norms or (None, None)), *turn)
    if norms is not None and rotation is None:
        q, k, v = (
            x.view(*qkv_BTSD.shape[:3], attn.heads, -1)
            for x in branches.HeadNorm.apply(qkv_BTSD.flatten(0, 2), *norms)
        )
    else:
        q, k, v = split_heads(qkv_BTSD, attn.heads, norms, rotation, across_frames)
    attend = calls.across_frames if across_frames else calls.within_frames
    return attend(q, k, v, attn.table)


def _of(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight, linear.bias
