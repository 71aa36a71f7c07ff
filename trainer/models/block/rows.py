"""What a block does to rows between its matrix products, forward and backward, on any device.

Every function reads its inputs once and writes its results once: on a GPU it is one Triton kernel,
with a second one that adds up what programs have left of sums over rows, in a fixed order. The
formulas beside them are what the kernels compute; they run where there is no Triton.

Rows are tokens of all clips, [R, D]. Modulations are [G, D], each for R / G rows that follow each
other: of a clip, or of a frame.

What a product reads next is returned as its operand, too: the rows themselves, or with `in_fp8`
theirs in fp8, written in the same pass. Both are rounded from one value in fp32: rows in fp8 have
not been bf16 before (but hidden rows above MOST_HIDDEN, in a pass of their own). Forward the format
is e4m3, of gradients e5m2.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.attention.frames import IS_INTERPRETED
from trainer.models.block import fp8
from trainer.models.block.fp8 import Operand, Scaled
from trainer.models.fused import NORM_EPS, wide

# R rows · G modulations · D width · N heads · E width of a head
MOST_WIDTH = 4096  # a row in the registers of a block of threads
MOST_HIDDEN = 8192  # such a row of hidden values, of more threads
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
) -> tuple[Tensor, Operand]:
    """x + branch (x itself without one), and its layer norm * (1 + scale) + shift, each [R, D];
    the second one as an operand alone."""
    if has_kernels(x_RD):
        return _kernels().norm_modulate(x_RD, shift_GD, scale_GD, branch_RD, in_fp8)
    total = x_RD if branch_RD is None else x_RD + branch_RD
    normal, _ = _normal(_wide(total))
    out = normal * _each(1 + _wide(scale_GD), x_RD) + _each(_wide(shift_GD), x_RD)
    return total, _operand(out, out.to(x_RD.dtype), fp8.E4M3, in_fp8)


def scaled(x_RK: Tensor, dtype: torch.dtype, gelu: bool = False) -> Scaled:
    """Rows, or their GELU in the tanh form, in that format of fp8, each with its scale."""
    if has_kernels(x_RK[:, :1]):
        from trainer.models.block import fp8_kernels

        return fp8_kernels.scaled(x_RK, dtype, gelu)
    return fp8.scaled(F.gelu(_wide(x_RK), approximate="tanh") if gelu else x_RK, dtype)


def scaled_transposed(weight_CK: Tensor) -> Scaled:
    """The transposed matrix [K, C] in e4m3."""
    if has_kernels(weight_CK[:, :1]):
        from trainer.models.block import fp8_kernels

        return fp8_kernels.scaled_transposed(weight_CK, fp8.E4M3)
    return fp8.scaled(weight_CK.mT.contiguous(), fp8.E4M3)


def norm_modulate_backward(
    x_RD: Tensor,
    d_out_RD: Tensor,
    d_x_RD: Tensor | None,
    shift_GD: Tensor,
    scale_GD: Tensor,
    in_fp8: bool = False,
) -> tuple[Tensor, Operand, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (with `d_x`, what it has from elsewhere) and they as an operand, then the
    output again; gradients of shift and scale [G, D], and the sum of x's over all rows [D]."""
    if has_kernels(x_RD):
        inputs = x_RD, d_out_RD, d_x_RD, shift_GD, scale_GD
        return _kernels().norm_modulate_backward(*inputs, in_fp8)
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
    rounded, *rest = _as(x_RD, d_x, out, d_shift, d_scale, d_x.sum(0))
    return rounded, _operand(d_x, rounded, fp8.E5M2, in_fp8), *rest


def add_gated(
    x_RD: Tensor, branch_RD: Tensor, gate_GD: Tensor, in_fp8: bool = False
) -> tuple[Tensor, Operand]:
    """x + branch * gate, and it as an operand."""
    if has_kernels(x_RD):
        return _kernels().add_gated(x_RD, branch_RD, gate_GD, in_fp8)
    out = _wide(x_RD) + _wide(branch_RD) * _each(_wide(gate_GD), x_RD)
    rounded = out.to(x_RD.dtype)
    return rounded, _operand(out, rounded, fp8.E4M3, in_fp8)


def add_gated_backward(
    d_out_RD: Tensor,
    branch_RD: Tensor,
    gate_GD: Tensor,
    more_RD: Tensor | None = None,
    in_fp8: bool = False,
) -> tuple[Tensor, Tensor, Operand, Tensor, Tensor]:
    """Gradients of x: `d_out` with `more`, what it has from elsewhere (kernels write the sum into
    `d_out`); of the branch, and they as an operand; of the gate [G, D]; and the branch's summed
    over all rows [D]: that of the bias of the product which made it."""
    if has_kernels(d_out_RD):
        inputs = d_out_RD, branch_RD, gate_GD, more_RD
        return _kernels().add_gated_backward(*inputs, in_fp8)
    d_out, gate = _wide(d_out_RD), _wide(gate_GD)
    if more_RD is not None:
        d_out = d_out + _wide(more_RD)
    groups = len(gate_GD)
    d_gate = _sums(d_out * _wide(branch_RD), groups)
    d_bias = (_sums(d_out, groups) * gate).sum(0)
    d_branch = d_out * _each(gate, d_out)
    d_x, rounded, *rest = _as(d_out_RD, d_out, d_branch, d_gate, d_bias)
    return d_x, rounded, _operand(d_branch, rounded, fp8.E5M2, in_fp8), *rest


def gelu_backward(
    x_RH: Tensor, d_out_RH: Tensor, in_fp8: bool = False
) -> tuple[Tensor, Operand, Tensor, Tensor]:
    """Of the tanh form: x's gradient (kernels write it into `d_out`) and it as an operand, the
    output again, and the gradient summed over rows [H]."""
    if has_kernels(x_RH[:, :1]):
        if in_fp8 and x_RH.shape[1] <= MOST_HIDDEN:
            from trainer.models.block import fp8_kernels

            return fp8_kernels.gelu_backward(x_RH, d_out_RH, fp8.E5M2)
        d_x, *rest = _kernels().gelu_backward(x_RH, d_out_RH)
        return d_x, scaled(d_x, fp8.E5M2) if in_fp8 else d_x, *rest
    x = _wide(x_RH)
    d_x = torch.ops.aten.gelu_backward(_wide(d_out_RH), x, approximate="tanh")
    out = F.gelu(x, approximate="tanh")
    rounded, *rest = _as(x_RH, d_x, out, d_x.sum(0))
    return rounded, _operand(d_x, rounded, fp8.E5M2, in_fp8), *rest


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
    in_fp8: bool = False,
) -> tuple[Tensor, Operand, Tensor, Tensor]:
    """Gradients of qkv [R, 3 N E] and they as an operand, and of the two weights [E]."""
    if has_kernels(qkv_R3NE):
        grads = d_q_RNE, d_k_RNE, d_v_RNE
        return _kernels().head_norm_backward(qkv_R3NE, q_weight_E, k_weight_E, *grads, in_fp8)
    d_qkv = torch.empty_like(qkv_R3NE, dtype=wide(qkv_R3NE.dtype))
    d_qkv[:, 2] = d_v_RNE
    d_weights = []
    for part, weight, grad in ((0, q_weight_E, d_q_RNE), (1, k_weight_E, d_k_RNE)):
        x, d = _wide(qkv_R3NE[:, part]), _wide(grad)
        rms = _rms(x)
        normal = x * rms
        d_weights.append((d * normal).sum((0, 1)))
        d_normal = d * _wide(weight)
        along = (d_normal * normal).mean(-1, keepdim=True)
        d_qkv[:, part] = rms * (d_normal - normal * along)
    d_qkv = d_qkv.flatten(1)
    rounded, *rest = _as(qkv_R3NE, d_qkv, *d_weights)
    return rounded, _operand(d_qkv, rounded, fp8.E5M2, in_fp8), *rest


def _operand(x_RD: Tensor, rounded_RD: Tensor, dtype: torch.dtype, in_fp8: bool) -> Operand:
    return fp8.scaled(x_RD, dtype) if in_fp8 else rounded_RD


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
