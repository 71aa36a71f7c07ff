"""STDiT3 the way Open-Sora 1.2 runs it, for benchmarks and tests to compare with.

Same weights and numbers, other arithmetic: attention scores in full with an fp32 softmax, every
activation modulated twice with a frame mask, tokens moved for every temporal block. With `fused`
it has the kernels that Lambda's stage 1 switches on: flash attention for long sequences, and one
for the captions of all clips (upstream: xformers). Layer norm is one kernel either way: torch's
own does what apex's FusedLayerNorm does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from trainer.models.attention.calls import Packed, packs_text, to_packed_text
from trainer.models.attention.table import Table
from trainer.models.block.stdit_block import STDiT3Block
from trainer.models.fused import NORM_EPS, wide
from trainer.models.layers import CrossAttention, HeadNorm, SelfAttention
from trainer.models.stdit import STDiT3

# B batch · T frames · S tokens of a frame · K = T S tokens of a clip · L text tokens · D width
# A sequences · N heads · E width of a head · I tokens of a sequence
_FLASH_FIRST = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def plain_forward(
    model: STDiT3,
    x_BCTHW: Tensor,
    timestep_B: Tensor,
    y_B1LC: Tensor,
    mask: Tensor | None = None,
    x_mask: Tensor | None = None,
    *,
    fps: Tensor,
    height: Tensor,
    width: Tensor,
    recompute: bool = False,
    fused: bool = False,
) -> Tensor:
    """What `model` gives for a row of every input per clip; `recompute` checkpoints every block.

    `fused`: as Lambda ran stage 1, with upstream's switches for kernels on.
    """
    config, dtype = model.config, model.x_embedder.proj.weight.dtype
    frames, rows, columns = x_BCTHW.shape[2:]
    pt, ph, pw = config.patch_size
    grid = (-(-frames // pt), -(-rows // ph), -(-columns // pw))
    x_BTSD = model.x_embedder(x_BCTHW.to(dtype))
    x_BTSD = x_BTSD + model._positions(grid, height, width, x_BTSD.device).to(dtype)
    x_BKD = rearrange(x_BTSD, "b t s d -> b (t s) d")

    fps_BD = model.fps_embedder(fps)
    t_BD = model.t_embedder(timestep_B) + fps_BD
    t0_BD = model.t_embedder(torch.zeros_like(timestep_B)) + fps_BD
    times: list[Any] = [model.t_block(t_BD)]
    if x_mask is not None:
        times.append(model.t_block(t0_BD))
    y_BLD = model.y_embedder(y_B1LC.to(dtype)).squeeze(1)
    texts = list(y_BLD)
    if mask is not None:
        texts = [text[keep.bool()] for text, keep in zip(y_BLD, mask, strict=True)]
    rotation = model.rope(grid[0])

    for pair in zip(model.spatial_blocks, model.temporal_blocks, strict=True):
        for block in pair:
            inputs: tuple[Any, ...] = (block, x_BKD, texts, times, x_mask, grid[0], rotation, fused)
            if recompute and torch.is_grad_enabled():
                x_BKD = checkpoint(_block, *inputs, use_reentrant=False)
            else:
                x_BKD = _block(*inputs)
    x_BKD = _final(model, x_BKD, t_BD, t0_BD, x_mask, grid[0])
    order = "b (t h w) (p q r c) -> b c (t p) (h q) (w r)"
    out = rearrange(x_BKD, order, t=grid[0], h=grid[1], p=pt, q=ph, r=pw)
    return out[:, :, :frames, :rows, :columns].to(wide(dtype))


def _block(
    block: STDiT3Block,
    x_BKD: Tensor,
    texts: list[Tensor],
    times: list[Tensor],
    x_mask: Tensor | None,
    frames: int,
    rotation: tuple[Tensor, Tensor],
    fused: bool,
) -> Tensor:
    rows = [rearrange(t, "b (six d) -> b six d", six=6) for t in times]
    tables = [(block.scale_shift_table + t).chunk(6, dim=1) for t in rows]

    def modulated(first: int) -> Tensor:
        normal = F.layer_norm(x_BKD, x_BKD.shape[-1:], eps=NORM_EPS)
        both = [normal * (1 + table[first + 1]) + table[first] for table in tables]
        return _choose(both, x_mask, frames)

    def gated(branch: Tensor, index: int) -> Tensor:
        return _choose([table[index] * branch for table in tables], x_mask, frames)

    order = "(b s) t d" if block.temporal else "(b t) s d"
    sequences = rearrange(modulated(0), f"b (t s) d -> {order}", t=frames)
    branch = _attend(block.attn, sequences, rotation if block.temporal else None, fused)
    branch = rearrange(branch, f"{order} -> b (t s) d", b=len(x_BKD), t=frames)
    x_BKD = x_BKD + gated(branch, 2)
    x_BKD = x_BKD + _attend_text(block.cross_attn, x_BKD, texts, fused)
    hidden = F.gelu(block.mlp.fc1(modulated(3)), approximate="tanh")
    return x_BKD + gated(block.mlp.fc2(hidden), 5)


def _choose(both: list[Tensor], x_mask: Tensor | None, frames: int) -> Tensor:
    """The second where a frame is given."""
    if x_mask is None:
        return both[0]
    noised, given = (rearrange(x, "b (t s) d -> b t s d", t=frames) for x in both)
    return rearrange(torch.where(x_mask[:, :, None, None], noised, given), "b t s d -> b (t s) d")


def _attend(
    attn: SelfAttention, x_AID: Tensor, rotation: tuple[Tensor, Tensor] | None, fused: bool
) -> Tensor:
    qkv = rearrange(attn.qkv(x_AID), "a i (three n e) -> three a n i e", three=3, n=attn.heads)
    q, k, v = qkv.unbind(0)
    q, k = _head_norm(attn.q_norm, q), _head_norm(attn.k_norm, k)
    if rotation is not None:
        q, k = _rotate(q, rotation), _rotate(k, rotation)
    if fused and takes_flash(*x_AID.shape[:2]):
        with sdpa_kernel(_FLASH_FIRST, set_priority=True):  # flash has no fp32
            out = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        out = scores.to(wide(x_AID.dtype)).softmax(dim=-1).to(x_AID.dtype) @ v
    return attn.proj(rearrange(out, "a n i e -> a i (n e)"))


def takes_flash(sequences: int, tokens: int) -> bool:
    """Upstream's rule: "flash attn is not memory efficient for small sequences, this is
    empirical". In stage 1 spatial attention takes it from 240p on, temporal attention never.
    """
    return tokens > sequences


def _head_norm(norm: torch.nn.Module, x: Tensor) -> Tensor:
    if not isinstance(norm, HeadNorm):
        return x
    exact = x.to(wide(x.dtype))
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + NORM_EPS)
    return norm.weight * exact.to(x.dtype)


def _rotate(x_ANIE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos_IE, sin_IE = (table.repeat_interleave(2, dim=-1) for table in rotation)
    exact = x_ANIE.to(wide(x_ANIE.dtype))
    a, b = exact.unflatten(-1, (-1, 2)).unbind(-1)
    across = torch.stack([-b, a], dim=-1).flatten(-2)
    return (exact * cos_IE + across * sin_IE).to(x_ANIE.dtype)


def _attend_text(attn: CrossAttention, x_BKD: Tensor, texts: list[Tensor], fused: bool) -> Tensor:
    """Over the real tokens of each clip's caption: clip by clip, or `fused` in one kernel."""
    lengths = [len(text) for text in texts]
    kv = attn.kv_linear(torch.cat(texts))
    width = x_BKD.shape[-1] // attn.heads
    if fused and packs_text(x_BKD.device, x_BKD.dtype, Table(), max(lengths), width):
        q_BKNE = attn.q_linear(x_BKD).unflatten(-1, (attn.heads, -1))
        parts = kv.unflatten(-1, (2, attn.heads, -1))
        return attn.proj(to_packed_text(q_BKNE, parts, _packed(x_BKD, lengths)).flatten(-2))
    q_BNKE = rearrange(attn.q_linear(x_BKD), "b k (n e) -> b n k e", n=attn.heads)
    outs = []
    for q_NKE, kv_LD in zip(q_BNKE, kv.split(lengths), strict=True):
        k, v = rearrange(kv_LD, "l (two n e) -> two n l e", two=2, n=attn.heads).unbind(0)
        outs.append(F.scaled_dot_product_attention(q_NKE[None], k[None], v[None])[0])
    return attn.proj(rearrange(torch.stack(outs), "b n k e -> b k (n e)"))


def _packed(x_BKD: Tensor, lengths: list[int]) -> Packed:
    """Captions of these lengths end to end, without padding."""
    batch, queries = x_BKD.shape[:2]
    starts = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32)
    ends = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
    is_padding = torch.zeros(sum(lengths), 1, 1, dtype=torch.bool)
    sides = (starts, ends, is_padding)
    starts, ends, is_padding = (side.to(x_BKD.device, non_blocking=True) for side in sides)
    return Packed(starts, ends, is_padding, queries, max(lengths))


def _final(
    model: STDiT3, x_BKD: Tensor, t_BD: Tensor, t0_BD: Tensor, x_mask: Tensor | None, frames: int
) -> Tensor:
    def modulated(x: Tensor, t: Tensor) -> Tensor:
        shift, scale = (model.final_layer.scale_shift_table + t[:, None]).chunk(2, dim=1)
        return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift

    x_BKD = modulated(x_BKD, t_BD)
    if x_mask is not None:
        x_BKD = _choose([x_BKD, modulated(x_BKD, t0_BD)], x_mask, frames)
    return model.final_layer.linear(x_BKD)
