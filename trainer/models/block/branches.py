"""A block's branches as autograd functions, with what each keeps and computes again chosen by hand.

Between two matrix products stands one pass over memory (`block.rows`). A tensor that goes on beside
a branch passes through its function, so that its gradient is added where the branch's is made: by a
kernel that reads it anyway, or by the product itself. `in_fp8` is for `block.products`.

Kept for the backward pass, in widths of a token: the input and the output of attention and their
product (3), text's input and output (2), the input of the MLP and of its norm (1), its hidden
values (4) and its product (1); normed inputs and the MLP's activation are made again on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.models.block import products, rows

# R rows · G modulations · D width · C width of a product's output · N heads · E width of a head
Grad = Tensor | None


class NormLinear(torch.autograd.Function):
    """linear(norm_modulate(x)) [R, C], and x."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        shift_GD: Tensor,
        scale_GD: Tensor,
        weight: Tensor,
        bias: Tensor,
        in_fp8: bool,
    ) -> tuple[Tensor, Tensor]:
        _, normed = rows.norm_modulate(x_RD, shift_GD, scale_GD, None, in_fp8)
        ctx.save_for_backward(x_RD, shift_GD, scale_GD, weight)
        ctx.in_fp8 = in_fp8
        return products.linear(normed, weight, bias), x_RD.view_as(x_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        d_out, d_x = grads
        x, shift, scale, weight = ctx.saved_tensors
        d_normed = products.input_gradient(d_out, weight, ctx.in_fp8)
        d_x, normed, d_shift, d_scale, _ = rows.norm_modulate_backward(
            x, d_normed, d_x, shift, scale
        )
        d_weight, d_bias = _of_linear(ctx.needs_input_grad[3], d_out, normed)
        return d_x, d_shift, d_scale, d_weight, d_bias, None


class HeadNorm(torch.autograd.Function):
    """Queries, keys (after their RMS norms) and values, each [R, N, E], of [R, 3 N E]."""

    @staticmethod
    def forward(
        ctx: Any, qkv_RD: Tensor, q_weight_E: Tensor, k_weight_E: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = qkv_RD.unflatten(-1, (3, -1, len(q_weight_E)))
        q, k = rows.head_norm(parts, q_weight_E, k_weight_E)
        ctx.save_for_backward(qkv_RD, q_weight_E, k_weight_E)
        return q, k, parts[:, 2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        qkv, q_weight, k_weight = ctx.saved_tensors
        parts = qkv.unflatten(-1, (3, -1, len(q_weight)))
        d_qkv, *d_weights = rows.head_norm_backward(parts, q_weight, k_weight, *grads)
        return d_qkv.view(qkv.shape), *d_weights


class FramesAttention(torch.autograd.Function):
    """Attention among the frames of each place, [B, T, S, N, E], of a whole projection
    [B, T, S, 3, N, E]; norms and rotation are applied in registers."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        q_weight_E: Tensor | None,
        k_weight_E: Tensor | None,
        cos_TJ: Tensor | None,
        sin_TJ: Tensor | None,
    ) -> Tensor:
        from trainer.models.attention import frames_kernels

        ctx.save_for_backward(qkv, q_weight_E, k_weight_E, cos_TJ, sin_TJ)
        norms, rotation = _pair(q_weight_E, k_weight_E), _pair(cos_TJ, sin_TJ)
        q, k, v = qkv.unbind(3)
        return frames_kernels.forward(q, k, v, norms, rotation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        from trainer.models.attention import frames_kernels

        qkv, *more = ctx.saved_tensors
        norms, rotation = _pair(*more[:2]), _pair(*more[2:])
        d_qkv, *d_weights = frames_kernels.backward_raw(qkv, grads[0], norms, rotation)
        return d_qkv, *d_weights, None, None


class GatedResidual(torch.autograd.Function):
    """x + linear(branch) * gate, [R, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        branch_RD: Tensor,
        gate_GD: Tensor,
        weight: Tensor,
        bias: Tensor,
        in_fp8: bool,
    ) -> Tensor:
        made = products.linear(products.operand(branch_RD, in_fp8), weight, bias)
        ctx.save_for_backward(branch_RD, made, gate_GD, weight)
        ctx.in_fp8 = in_fp8
        return rows.add_gated(x_RD, made, gate_GD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        (d_out,) = grads
        branch, made, gate, weight = ctx.saved_tensors
        d_made, d_gate, d_bias = rows.add_gated_backward(d_out, made, gate)
        d_weight = d_made.mT @ branch if ctx.needs_input_grad[3] else None
        d_branch = products.input_gradient(d_made, weight, ctx.in_fp8)
        return d_out, d_branch, d_gate, d_weight, d_bias, None


class PassingLinear(torch.autograd.Function):
    """linear(x) [R, C], and x."""

    @staticmethod
    def forward(
        ctx: Any, x_RD: Tensor, weight: Tensor, bias: Tensor, in_fp8: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x_RD, weight)
        ctx.in_fp8 = in_fp8
        out = products.linear(products.operand(x_RD, in_fp8), weight, bias)
        return out, x_RD.view_as(x_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        d_out, d_x = grads
        x, weight = ctx.saved_tensors
        own = _of_linear(ctx.needs_input_grad[1], d_out, x)
        return products.input_gradient(d_out, weight, ctx.in_fp8, d_x), *own, None


class TextThenMlp(torch.autograd.Function):
    """y + mlp(norm_modulate(y)) * gate with y = x + linear(text), [R, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        text_RD: Tensor,
        shift_GD: Tensor,
        scale_GD: Tensor,
        gate_GD: Tensor,
        text_weight: Tensor,
        text_bias: Tensor,
        weight_1: Tensor,
        bias_1: Tensor,
        weight_2: Tensor,
        bias_2: Tensor,
        in_fp8: bool,
    ) -> Tensor:
        added = products.linear(products.operand(text_RD, in_fp8), text_weight, text_bias)
        y, normed = rows.norm_modulate(x_RD, shift_GD, scale_GD, added, in_fp8)
        active, hidden = products.gelu_linear(normed, weight_1, bias_1)
        del added, normed
        made = products.linear(active, weight_2, bias_2)
        del active
        ctx.in_fp8 = in_fp8
        ctx.save_for_backward(
            text_RD, y, hidden, made, shift_GD, scale_GD, gate_GD, text_weight, weight_1, weight_2
        )
        return rows.add_gated(y, made, gate_GD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        (d_out,) = grads
        text, y, hidden, made, shift, scale, gate, text_weight, weight_1, weight_2 = (
            ctx.saved_tensors
        )
        d_made, d_gate, d_bias_2 = rows.add_gated_backward(d_out, made, gate)
        d_hidden, active, d_bias_1 = products.gelu_backward(d_made, weight_2, hidden, ctx.in_fp8)
        learns = ctx.needs_input_grad[7]
        d_weight_2 = d_made.mT @ active if learns else None
        del d_made, active
        d_y, normed, d_shift, d_scale, d_text_bias = rows.norm_modulate_backward(
            y, products.input_gradient(d_hidden, weight_1, ctx.in_fp8), d_out, shift, scale
        )
        d_weight_1, d_text_weight = (
            d.mT @ x if learns else None for d, x in ((d_hidden, normed), (d_y, text))
        )
        d_linears = (d_text_weight, d_text_bias, d_weight_1, d_bias_1, d_weight_2, d_bias_2)
        d_text = products.input_gradient(d_y, text_weight, ctx.in_fp8)
        return d_y, d_text, d_shift, d_scale, d_gate, *d_linears, None


def _of_linear(learns: bool, d_out_RC: Tensor, x_RD: Tensor) -> tuple[Grad, Grad]:
    """Gradients of weight [C, D] and bias [C]."""
    return products.weight_gradient(d_out_RC, x_RD) if learns else (None, None)


def _pair(first: Tensor | None, second: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if first is None or second is None else (first, second)
