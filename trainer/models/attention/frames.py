"""Attention over a few frames: one Triton kernel for each direction, on tensors as they lie.

Temporal attention has one key for an image and 120 for 16 seconds. Flash attention pads such rows
to 128, and its backward pass keeps an fp32 accumulator of 128 rows for each: 54 GB for 144p images
at Open-Sora's batch size. Here a program takes as many whole sequences as fill its block of rows
and masks what belongs to another one. Everything it reads is read once, each gradient is written
once, without accumulators or atomics, so the same inputs give the same bits on every run.

Triton is imported with the first call: a CPU build of torch does not have it.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

# B batch · T frames · S places of a frame · N heads · E width of a head
MOST_FRAMES = 128  # rows of a block; flash attention wastes nothing on longer sequences
MOST_WIDTH = 128
# Above, norms and rotation in registers spill 1.2 kB a thread (tests.gpu.compiled): they go before.
MOST_PREPARED = 64
_HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # runs kernels on a CPU, for tests
# Shared memory of the backward pass for 128 rows of 128 columns (tests.gpu.compiled): cards of data
# centers have 163 kB and more for a block of threads, others 99 kB.
_LARGEST_BYTES = 131_072


def is_usable(q_BTSNE: Tensor) -> bool:
    """Whether `frames_attention` takes these queries here."""
    _, frames, _, _, width = q_BTSNE.shape
    # Rows begin at multiples of 16 bytes: the kernels count strides in eighths.
    if frames > MOST_FRAMES or width > MOST_WIDTH or width % 8 or not _HAS_TRITON:
        return False
    if not q_BTSNE.is_cuda:
        return IS_INTERPRETED and q_BTSNE.dtype in (torch.float16, torch.float32)
    # fp32 products run on no tensor core: they spill registers, and compile for minutes.
    is_half = q_BTSNE.dtype in (torch.float16, torch.bfloat16)
    return is_half and (frames <= MOST_FRAMES // 2 or has_shared_memory(q_BTSNE.device.index))


def has_shared_memory(index: int | None) -> bool:
    """Whether a card has enough of it for the largest blocks."""
    card: Any = torch.cuda.get_device_properties(index)
    return getattr(card, "shared_memory_per_block_optin", 0) >= _LARGEST_BYTES


def frames_attention(q_BTSNE: Tensor, k_BTSNE: Tensor, v_BTSNE: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(E)) v over the frames of each place and head, [B, T, S, N, E].

    The last axis of each must be contiguous; the others may lie anyhow. Needs `is_usable`.
    """
    return _attention(q_BTSNE, k_BTSNE, v_BTSNE)


@torch.library.custom_op("trainer::frames_attention", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from trainer.models.attention import frames_kernels

    return frames_kernels.forward(q, k, v)


@torch.library.custom_op("trainer::frames_attention_backward", mutates_args=())
def _gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from trainer.models.attention import frames_kernels

    return frames_kernels.backward(q, k, v, grad)


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@_gradients.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(*ctx.saved_tensors, grad)


_attention.register_autograd(_backward, setup_context=_keep)
