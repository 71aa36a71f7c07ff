"""Attention for short sequences on the CPU, and for few keys where there is no better kernel.

Torch's CPU kernel gives each head to one thread; for short sequences a second one gains nothing
(temporal, 1,024 sequences of 8: 5.3 ms on one thread, 7 to 11 ms on two). Products over all heads
at once take 1.2 ms on two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# B batch · N heads · I queries · K keys · E width of a head
MOST_KEYS = 256  # above, keeping a row of K scores a query costs more memory than it saves time


def short_keys(like: Tensor) -> int:
    """Most keys of a sequence that counts as short, on the device and in the dtype of `like`."""
    is_exact = like.dtype in (torch.float32, torch.float64)
    return MOST_KEYS if like.device.type == "cpu" and is_exact else 0


def is_short(q: Tensor, k: Tensor, keep: Tensor | None) -> bool:
    """Whether `products` is the better form; every query needs a key."""
    if k.shape[-2] > short_keys(q) or torch.compiler.is_compiling():
        return False
    return keep is None or bool(keep.any(-1).all())


def products(
    q_BNIE: Tensor, k_BNKE: Tensor, v_BNKE: Tensor, keep_BK: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(E)) v, [B, N, I, E], of the keys in `keep_BK`; keeps the weights."""
    return _Short.apply(q_BNIE, k_BNKE, v_BNKE, keep_BK)


class _Short(torch.autograd.Function):
    """Keeps the weights of the keys, [B N, I, K], for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        shape, factor = q.shape, q.shape[-1] ** -0.5
        q, k = _together(q), _together(k)
        scores = _product(q, k.mT, factor)
        if keep is not None:
            left_out = ~keep[:, None, None, :]
            scores.view(*shape[:3], -1).masked_fill_(left_out, -torch.inf)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.factor, ctx.shape = factor, shape
        return torch.bmm(weights, _together(v)).view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad = _together(grads[0])
        d_v = torch.bmm(weights.mT, grad)
        d_weights = torch.bmm(grad, _together(v).mT)
        d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        d_q = _product(d_scores, k, ctx.factor)
        d_k = _product(d_scores.mT, q, ctx.factor)
        return *(part.view(*ctx.shape[:2], *part.shape[-2:]) for part in (d_q, d_k, d_v)), None


def _together(x_BNIE: Tensor) -> Tensor:
    """[B N, I, E]; moves what lies apart."""
    return x_BNIE.reshape(-1, *x_BNIE.shape[-2:])


def _product(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """factor * a @ b without a pass of its own for the factor."""
    unread = a.new_empty(()).expand(a.shape[0], a.shape[1], b.shape[2])
    return torch.baddbmm(unread, a, b, beta=0, alpha=factor)
