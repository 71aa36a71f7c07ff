"""What a block does to rows between its matrix products, forward and backward, on any device.

Every function reads its inputs once and writes its results once: on a GPU it is one Triton kernel,
with a second one that adds up what programs have left of sums over rows, in a fixed order. The
formulas beside them are what the kernels compute; they run where there is no Triton.

Rows are tokens of all clips, [R, D]. Modulations are [G, D], each for R / G rows that follow each
other: of a clip, or of a frame.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.attention.frames import IS_INTERPRETED
from trainer.models.block import fp8
from trainer.models.block.fp8 import Scaled
from trainer.models.fused import NORM_EPS, wide

# R rows · G modulations · D width · N heads · E width of a head
MOST_WIDTH = 4096  # a row in the registers of a block of threads
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def fits(device: str, itemsize: int, width: int, head_width: int) -> bool:
    """Whether tokens of `width` and values of `itemsize` bytes are for these kernels on a device.

    Products of fp32 take most of the time anyway.
    """
    narrow = width <= MOST_WIDTH and head_width % 8 == 0
    return device == "cuda" and itemsize == 2 and narrow


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels take rows like these here."""
    if not _HAS_TRITON or x.shape[-1] > MOST_WIDTH:
        return False
    if x.is_cuda:
        return x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return IS_INTERPRETED and x.dtype in (torch.float16, torch.float32)


def _kernels() -> Any:
    from trainer.models.block import rows_kernels

    return rows_kernels


def norm_modulate(
    x_RD: Tensor,
    shift_GD: Tensor,
    scale_GD: Tensor,
    branch_RD: Tensor | None = None,
    in_fp8: bool = False,
) -> tuple[Tensor, Tensor | Scaled]:
    """x + branch (x itself without one), and its layer norm * (1 + scale) + shift, each [R, D];
    the second one in fp8 if wanted."""
    if has_kernels(x_RD):
        return _kernels().norm_modulate(x_RD, shift_GD, scale_GD, branch_RD, in_fp8)
    total = x_RD if branch_RD is None else x_RD + branch_RD
    normal, _ = _normal(_wide(total))
    out = normal * _each(1 + _wide(scale_GD), x_RD) + _each(_wide(shift_GD), x_RD)
    return total, fp8.scaled(out, fp8.E4M3) if in_fp8 else out.to(x_RD.dtype)


def scaled(x_RK: Tensor, dtype: torch.dtype, gelu: bool = False) -> Scaled:
    """Rows, or their GELU in the tanh form, in that format of fp8, each with its scale."""
    if has_kernels(x_RK[:, :1]):
        from trainer.models.block import fp8_kernels

        return fp8_kernels.scaled(x_RK, dtype, gelu)
    return fp8.scaled(F.gelu(_wide(x_RK), approximate="tanh") if gelu else x_RK, dtype)


def norm_modulate_backward(
    x_RD: Tensor, d_out_RD: Tensor, d_x_RD: Tensor | None, shift_GD: Tensor, scale_GD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (with `d_x`, what it has from elsewhere), then the output again; gradients of
    shift and scale [G, D], and the sum of x's over all rows [D]."""
    if has_kernels(x_RD):
        return _kernels().norm_modulate_backward(x_RD, d_out_RD, d_x_RD, shift_GD, scale_GD)
    x, d_out = _wide(x_RD), _wide(d_out_RD)
    normal, rstd = _normal(x)
    factor = _each(1 + _wide(scale_GD), x)
    out = normal * factor + _each(_wide(shift_GD), x)
    d_normal = d_out * factor
    along = (d_normal * normal).mean(-1, keepdim=True)
    d_x = rstd * (d_normal - d_normal.mean(-1, keepdim=True) - normal * along)
    if d_x_RD is not None:
        d_x = d_x + _wide(d_x_RD)
    groups = len(scale_GD)
    d_shift, d_scale = _sums(d_out, groups), _sums(d_out * normal, groups)
    return _as(x_RD, d_x, out, d_shift, d_scale, d_x.sum(0))


def add_gated(x_RD: Tensor, branch_RD: Tensor, gate_GD: Tensor) -> Tensor:
    """x + branch * gate."""
    if has_kernels(x_RD):
        return _kernels().add_gated(x_RD, branch_RD, gate_GD)
    gate = _each(_wide(gate_GD), x_RD)
    return (_wide(x_RD) + _wide(branch_RD) * gate).to(x_RD.dtype)


def add_gated_backward(
    d_out_RD: Tensor, branch_RD: Tensor, gate_GD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the branch and of the gate [G, D]; and the branch's summed over all rows [D]:
    that of the bias of the product which made it."""
    if has_kernels(d_out_RD):
        return _kernels().add_gated_backward(d_out_RD, branch_RD, gate_GD)
    d_out, gate = _wide(d_out_RD), _wide(gate_GD)
    groups = len(gate_GD)
    d_gate = _sums(d_out * _wide(branch_RD), groups)
    d_bias = (_sums(d_out, groups) * gate).sum(0)
    return _as(d_out_RD, d_out * _each(gate, d_out), d_gate, d_bias)


def gelu_backward(x_RH: Tensor, d_out_RH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tanh form: x's gradient (kernels write it into `d_out`), the output again, and the
    gradient summed over rows [H]."""
    if has_kernels(x_RH[:, :1]):
        return _kernels().gelu_backward(x_RH, d_out_RH)
    x = _wide(x_RH)
    d_x = torch.ops.aten.gelu_backward(_wide(d_out_RH), x, approximate="tanh")
    out = F.gelu(x, approximate="tanh")
    return _as(x_RH, d_x, out, d_x.sum(0))


def head_norm(qkv_R3NE: Tensor, q_weight_E: Tensor, k_weight_E: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys after their RMS norms, each [R, N, E]."""
    if has_kernels(qkv_R3NE):
        return _kernels().head_norm(qkv_R3NE, q_weight_E, k_weight_E)
    q, k = _wide(qkv_R3NE[:, 0]), _wide(qkv_R3NE[:, 1])
    return _as(qkv_R3NE, q * _rms(q) * _wide(q_weight_E), k * _rms(k) * _wide(k_weight_E))


def head_norm_backward(
    qkv_R3NE: Tensor,
    q_weight_E: Tensor,
    k_weight_E: Tensor,
    d_q_RNE: Tensor,
    d_k_RNE: Tensor,
    d_v_RNE: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of qkv [R, 3, N, E], and of the two weights [E]."""
    if has_kernels(qkv_R3NE):
        grads = d_q_RNE, d_k_RNE, d_v_RNE
        return _kernels().head_norm_backward(qkv_R3NE, q_weight_E, k_weight_E, *grads)
    d_qkv = torch.empty_like(qkv_R3NE)
    d_qkv[:, 2] = d_v_RNE
    d_weights = []
    for part, weight, grad in ((0, q_weight_E, d_q_RNE), (1, k_weight_E, d_k_RNE)):
        x, d = _wide(qkv_R3NE[:, part]), _wide(grad)
        rms = _rms(x)
        normal = x * rms
        d_weights.append((d * normal).sum((0, 1)))
        d_normal = d * _wide(weight)
        along = (d_normal * normal).mean(-1, keepdim=True)
        d_qkv[:, part] = (rms * (d_normal - normal * along)).to(qkv_R3NE.dtype)
    return d_qkv, *_as(qkv_R3NE, *d_weights)


def _as(like: Tensor, *values: Tensor) -> Any:
    return tuple(value.to(like.dtype) for value in values)


def _wide(x: Tensor) -> Tensor:
    return x.to(wide(x.dtype))


def _normal(x_RD: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with mean 0 and deviation 1, and 1 / their deviation [R, 1]."""
    middle = x_RD - x_RD.mean(-1, keepdim=True)
    rstd = (middle.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
    return middle * rstd, rstd


def _rms(x: Tensor) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()


def _each(values_GD: Tensor, like_RD: Tensor) -> Tensor:
    """[R, D]: of each row its group's."""
    return values_GD.repeat_interleave(len(like_RD) // len(values_GD), 0)


def _sums(x_RD: Tensor, groups: int) -> Tensor:
    """[G, D]: over the rows of each group."""
    return x_RD.unflatten(0, (groups, -1)).sum(1)
