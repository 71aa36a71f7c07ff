"""Steps between the matrix products, with the backward pass written by hand.

They pass over memory less often than autograd's single operations and keep less: `norm_modulate`
its input, `gelu_tanh` its derivative, `split_heads` the projection. torch.compile gets the plain
formulas, because it fuses those itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# B batch · T frames · S places · D width · N heads · E width of a head · J = E/2 pairs
NORM_EPS = 1e-6
Rotation = tuple[Tensor, Tensor]  # cosines and sines [T, J]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What statistics are computed in: fp32, or fp64 in an fp64 model."""
    return torch.promote_types(dtype, torch.float32)


def layer_norm(x: Tensor) -> Tensor:
    """LayerNorm without weights, as in front of every modulation."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)


def norm_modulate(x_BTSD: Tensor, shift_BF1D: Tensor, scale_BF1D: Tensor) -> Tensor:
    """layer_norm(x) * (1 + scale) + shift, which are per clip (F = 1) or per frame (F = T)."""
    if torch.compiler.is_compiling():
        return torch.addcmul(shift_BF1D, layer_norm(x_BTSD), 1 + scale_BF1D)
    return _NormModulate.apply(x_BTSD, shift_BF1D, scale_BF1D)


class _NormModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, NORM_EPS)
        ctx.save_for_backward(x, scale, mean, rstd)
        return torch.addcmul(shift, out, 1 + scale, out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, scale, mean, rstd = ctx.saved_tensors
        d_x = d_shift = d_scale = None
        if ctx.needs_input_grad[1]:
            d_shift = grad.sum_to_size(scale.shape)
        if ctx.needs_input_grad[2]:
            normal = torch.native_layer_norm(x, x.shape[-1:], None, None, NORM_EPS)[0]
            d_scale = normal.mul_(grad).sum_to_size(scale.shape)
        if ctx.needs_input_grad[0]:
            d_x = torch.ops.aten.native_layer_norm_backward(
                grad * (1 + scale), x, x.shape[-1:], mean, rstd, None, None, (True, False, False)
            )[0]
        return d_x, d_shift, d_scale


def add_gated(x_BTSD: Tensor, branch_BTSD: Tensor, gate_BF1D: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.addcmul(x_BTSD, branch_BTSD, gate_BF1D)
    return _AddGated.apply(x_BTSD, branch_BTSD, gate_BF1D)


class _AddGated(torch.autograd.Function):
    """torch.addcmul; its own backward makes one more pass per factor (times `value`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(branch, gate)
        return torch.addcmul(x, branch, gate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        branch, gate = ctx.saved_tensors
        d_gate = (grad * branch).sum_to_size(gate.shape) if ctx.needs_input_grad[2] else None
        return grad, grad * gate, d_gate


# gelu(x) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3)
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form; the exact one moves the output by 6e-4 against published weights."""
    by_hand = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    if not by_hand or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    return _GeluTanh.apply(x)


class _GeluTanh(torch.autograd.Function):
    """Torch's CPU kernels take 4 ns an element both ways (tanh); this takes 2 and a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        linear = x.new_tensor(_LINEAR)
        gate = torch.addcmul(linear, x, x, value=_CUBIC).mul_(x).sigmoid_()
        out = x * gate
        if ctx.needs_input_grad[0]:
            # gate + (1 - gate) x gate d(2u)/dx, kept in place of x
            slope = torch.addcmul(linear, x, x, value=3 * _CUBIC).mul_(out)
            ctx.save_for_backward(slope.lerp_(torch.ones_like(linear), gate))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope


def split_heads(
    qkv_BTSD: Tensor,
    heads: int,
    norms: tuple[Tensor, Tensor] | None,
    rotation: Rotation | None,
    across_frames: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [B, T, S, N, E], of a projection [B, T, S, 3*N*E]. Tokens of a
    place lie together in memory (`across_frames`), or on a CPU those of a frame of a head. `norms`:
    the weights [E] of the RMS norms of queries and keys; `rotation` turns their pairs; in fp32."""
    if torch.compiler.is_compiling():
        return plain_split_heads(qkv_BTSD, heads, norms, rotation)
    weights = norms or (None, None)
    turn = None
    if rotation is not None:
        turn = torch.complex(*(table.to(wide(qkv_BTSD.dtype)) for table in rotation))
    return _SplitHeads.apply(qkv_BTSD, heads, *weights, turn, across_frames)


def plain_split_heads(
    qkv_BTSD: Tensor, heads: int, norms: tuple[Tensor, Tensor] | None, rotation: Rotation | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`split_heads` as the formulas say it."""
    q, k, v = qkv_BTSD.unflatten(-1, (3, heads, -1)).unbind(3)
    if norms is not None:
        q, k = rms_norm(q, norms[0]), rms_norm(k, norms[1])
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    return q, k, v


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm over the last axis; rounded to x's dtype before the weight, as upstream."""
    normal = F.rms_norm(x.to(wide(x.dtype)), x.shape[-1:], eps=NORM_EPS)
    return weight * normal.to(x.dtype)


def rotate(x_BTSNE: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (a, b) of a head into (a cos - b sin, b cos + a sin)."""
    cos, sin = (table[:, None, None] for table in rotation)
    # fp32: bf16 keeps 8 bits of a phase
    a, b = x_BTSNE.to(wide(x_BTSNE.dtype)).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x_BTSNE.dtype)


class _SplitHeads(torch.autograd.Function):
    """`plain_split_heads` for queries and keys at once; a rotated pair is a complex product."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        heads: int,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        turn: Tensor | None,
        across_frames: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = qkv.unflatten(-1, (3, heads, -1))  # [B, T, S, 3, N, E]
        raw = parts[..., :2, :, :].movedim(3, 0)  # queries and keys, [2, B, T, S, N, E]
        if raw.is_cuda and not across_frames:
            # As they lie: flash attention's output does so, too, and the next product reads that.
            out = torch.empty_like(raw, memory_format=torch.contiguous_format)
        else:
            place = 2 if across_frames else 3
            out = raw.new_empty(raw.movedim(place, -2).shape).movedim(-2, place)
        weight = rstd = None
        if q_weight is not None and k_weight is not None:
            weight = torch.stack([q_weight, k_weight])[:, None, None, None, None]
            norm = torch.linalg.vector_norm(raw, dim=-1, keepdim=True, dtype=wide(raw.dtype))
            rstd = norm.square_().div_(raw.shape[-1]).add_(NORM_EPS).rsqrt_()  # [..., 1]
            torch.mul(raw, rstd, out=out)
            out.mul_(weight)
        else:
            out.copy_(raw)
        if turn is not None:
            exact = out.to(wide(out.dtype))  # fp32: bf16 keeps 8 bits of a phase
            _turn(exact, turn, out=exact)
            out = exact.to(out.dtype)
        ctx.heads, ctx.shape = heads, qkv.shape
        ctx.save_for_backward(qkv if weight is not None else None, weight, rstd, turn)
        return out[0], out[1], parts[..., 2, :, :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, weight, rstd, turn = ctx.saved_tensors
        d_q, d_k, d_v = grads
        d_qkv = torch.empty(ctx.shape, dtype=d_v.dtype, device=d_v.device)
        d_parts = d_qkv.unflatten(-1, (3, ctx.heads, -1))
        d_parts[..., 2, :, :] = d_v
        d_raw = d_parts[..., :2, :, :].movedim(3, 0)
        # In place where the dtype is wide enough for the sums.
        work = d_raw if d_v.dtype == wide(d_v.dtype) else d_raw.to(wide(d_v.dtype))
        for part, grad in zip(work, (d_q, d_k), strict=True):
            if turn is None:
                part.copy_(grad)
            else:
                _turn(grad.to(part.dtype), turn.conj(), out=part)
        d_weights: tuple[Tensor | None, ...] = (None, None)
        if weight is not None:
            raw = qkv.unflatten(-1, (3, ctx.heads, -1))[..., :2, :, :].movedim(3, 0)
            rows = (work * raw).flatten(1, -2)  # [2, M, E], M = B T S N
            rms = rstd.flatten(1, -2)  # [2, M, 1]
            d_weights = tuple(_weighted(rows, rms, -2)[:, 0].to(weight.dtype).unbind(0))
            along = _weighted(rows, weight.to(rows.dtype).flatten(1, -2), -1)  # [2, M, 1]
            # rstd (w g - normal mean(w g normal)), with normal = raw rstd
            back = (along * rms.pow(3)).div_(-raw.shape[-1]).unflatten(1, raw.shape[1:-1])
            work.mul_(weight).mul_(rstd).addcmul_(raw, back)
        if work is not d_raw:
            d_raw.copy_(work)
        return d_qkv, None, *d_weights, None, None


_BY_PRODUCTS = ("cpu",)  # there products take 0.63 to 0.7 of the time of sums (2 busy cores)


def _weighted(rows_KME: Tensor, factors: Tensor, dim: int) -> Tensor:
    """(rows * factors).sum(dim, keepdim=True), of factors [K, M, 1] or [K, 1, E].

    On a GPU each would be an fp32 Sgemm with one row or column, over up to 1.8 million rows: 112 a
    step of XL/2.
    """
    if rows_KME.device.type not in _BY_PRODUCTS:
        return (rows_KME * factors).sum(dim, keepdim=True)
    return factors.mT @ rows_KME if dim == -2 else rows_KME @ factors.mT


def _turn(pairs: Tensor, turn_TJ: Tensor, out: Tensor) -> None:
    """Rotate [..., T, S, N, E] by the angles of complex numbers [T, J]; the dtype is wide."""
    turned = torch.view_as_complex(out.unflatten(-1, (-1, 2)))
    rows = torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))
    torch.mul(rows, turn_TJ[:, None, None], out=turned)
