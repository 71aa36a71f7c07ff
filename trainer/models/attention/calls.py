"""The three attentions of a block: within a frame, across frames, and to the caption."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.models.attention import frames, short
from trainer.models.attention.table import Table

# B batch · T frames · S places of a frame · N heads · E width of a head · I queries · K keys
# L tokens of a caption
MOST_HEADS = 65_535  # of a CUDA grid's last axis; XL/2 has 57,600 of places and heads at 720p
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


class Packed(NamedTuple):
    """Where clips begin among queries [B I] and among caption tokens [B L], which end with padding.

    Of fixed sizes for a shape of the batch, whatever the captions are: a compiled block serves all.
    """

    query_ends: Tensor  # int32 [B + 1]
    key_ends: Tensor  # int32 [B + 1]
    is_padding: Tensor  # bool [B L, 1, 1]: behind the last caption
    queries: int
    keys: int  # most of a caption


def within_frames(q_BTSNE: Tensor, k_BTSNE: Tensor, v_BTSNE: Tensor, table: Table) -> Tensor:
    """Attention among the places of each frame, [B, T, S, N, E]."""
    batch = len(q_BTSNE)
    q, k, v = (rearrange(x, "b t s n e -> (b t) n s e") for x in (q_BTSNE, k_BTSNE, v_BTSNE))
    out = attend(q, k, v, None, table.choose("spatial", k.shape[-2]))
    return rearrange(out, "(b t) n s e -> b t s n e", b=batch)


def across_frames(q_BTSNE: Tensor, k_BTSNE: Tensor, v_BTSNE: Tensor, table: Table) -> Tensor:
    """Attention among the frames of each place, [B, T, S, N, E]."""
    batch, count, places, heads, _ = q_BTSNE.shape
    kernel = table.choose("temporal", count)
    if kernel == "frames":
        if frames.is_usable(q_BTSNE):
            return frames.frames_attention(q_BTSNE, k_BTSNE, v_BTSNE)
        # Without Triton. Flash attention pads each sequence to 128 rows and keeps them in fp32.
        kernel = "products"
    # Places beside the heads where the grid allows it: no activation is moved.
    order = "b (s n) t e" if places * heads <= MOST_HEADS else "(b s) n t e"
    q, k, v = (rearrange(x, f"b t s n e -> {order}") for x in (q_BTSNE, k_BTSNE, v_BTSNE))
    out = attend(q, k, v, None, kernel)
    return rearrange(out, f"{order} -> b t s n e", b=batch, s=places)


def attend(
    q_BNIE: Tensor,
    k_BNKE: Tensor,
    v_BNKE: Tensor,
    keep_BK: Tensor | None = None,
    kernel: str = "flash",
) -> Tensor:
    """softmax(q k^T / sqrt(E)) v, [B, N, I, E], of the keys in `keep_BK` (bool); zeros without.

    `kernel` is for an accelerator: the first to be tried, others where it does not fit (fp32).
    """
    if short.is_short(q_BNIE, k_BNKE, keep_BK) or (kernel == "products" and q_BNIE.is_cuda):
        return short.products(q_BNIE, k_BNKE, v_BNKE, keep_BK)
    mask = None if keep_BK is None else keep_BK[:, None, None, :]
    if not q_BNIE.is_cuda:
        return F.scaled_dot_product_attention(q_BNIE, k_BNKE, v_BNKE, attn_mask=mask)
    with sdpa_kernel(backends(kernel), set_priority=True):
        return F.scaled_dot_product_attention(q_BNIE, k_BNKE, v_BNKE, attn_mask=mask)


def backends(kernel: str) -> list[SDPBackend]:
    """Torch's, in the order in which they are tried; each once, or dynamo's `sdpa_kernel` writes
    behind the end of torch's list of priorities (2.11 to 2.13), and masked attention has none."""
    first = _BACKENDS.get(kernel, SDPBackend.EFFICIENT_ATTENTION)
    return list(dict.fromkeys([first, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))


def without_plans(device: torch.device) -> AbstractContextManager[object]:
    """For the networks of other libraries, which leave the kernel to torch. Its first choice on an
    H100 is cuDNN, which plans every new shape again: the sizes of parts, clips and captions."""
    return sdpa_kernel(backends("efficient")) if device.type == "cuda" else nullcontext()


def to_packed_text(q_BINE: Tensor, kv_K2NE: Tensor, packed: Packed) -> Tensor:
    """Each clip's queries over its caption's real tokens, which lie end to end, [B, I, N, E]."""
    from torch.nn.attention.varlen import varlen_attn

    k, v = _PaddingUnread.apply(kv_K2NE, packed.is_padding).unbind(1)
    ends = packed.query_ends, packed.key_ends
    out = varlen_attn(q_BINE.flatten(0, 1), k, v, *ends, packed.queries, packed.keys)
    assert isinstance(out, Tensor)  # a pair only where the log-sums are asked for
    return out.view(q_BINE.shape)


class _PaddingUnread(torch.autograd.Function):
    """A tensor as it is. What a kernel leaves in the gradients of the padding behind the last
    caption is not read: they are 0."""

    @staticmethod
    def forward(ctx: Any, kv_K2NE: Tensor, is_padding_K11: Tensor) -> Tensor:
        ctx.save_for_backward(is_padding_K11)
        return kv_K2NE.view_as(kv_K2NE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (is_padding,) = ctx.saved_tensors
        return grads[0].masked_fill(is_padding[:, None], 0), None


def packs_text(
    device: torch.device, dtype: torch.dtype, table: Table, keys: int, head_width: int
) -> bool:
    """Whether captions are to be packed: where the kernel for it runs, and the table chooses it."""
    runs = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)
    # Torch pads heads for flash attention, but not for the form of it that takes packed rows.
    return runs and head_width % 8 == 0 and table.choose("text", keys) == "varlen"


def pack(y_BLD: Tensor, keep_BL: Tensor, queries: int) -> tuple[Tensor, Packed]:
    """Caption tokens [B L, D], real ones (`keep_BL`, on the host) first; where captions begin."""
    batch, length, _ = y_BLD.shape
    keep, ends = keep_BL.flatten(), keep_BL.sum(1).cumsum(0)
    order = torch.cat([keep.nonzero(), (~keep).nonzero()])[:, 0]
    key_ends = F.pad(ends, (1, 0)).int()
    query_ends = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32)
    is_padding = torch.arange(batch * length)[:, None, None] >= ends[-1]
    sides = (order, query_ends, key_ends, is_padding)
    order, query_ends, key_ends, is_padding = (
        side.to(y_BLD.device, non_blocking=True) for side in sides
    )
    return y_BLD.flatten(0, 1)[order], Packed(query_ends, key_ends, is_padding, queries, length)
