"""A block's branches as autograd functions, with what each keeps and computes again chosen by hand.

Between two matrix products stands one pass over memory (`block.rows`). A tensor that goes on beside
a branch passes through its function, so that its gradient is added where the branch's is made: by a
kernel that reads it anyway, or by the product itself. With `in_fp8` that pass also writes what the
next product reads, so a function reaches from product to product, and ends at attention.

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
        d_normed = products.input_gradient(products.gradient(d_out, ctx.in_fp8), weight)
        d_x, _, normed, d_shift, d_scale, _ = rows.norm_modulate_backward(
            x, d_normed, d_x, shift, scale
        )
        d_weight, d_bias = _of_linear(ctx.needs_input_grad[3], d_out, normed)
        return d_x, d_shift, d_scale, d_weight, d_bias, None


class NormHeads(torch.autograd.Function):
    """Queries, keys (after their RMS norms) and values, each [R, N, E], of the [R, 3 N E] that
    linear(norm_modulate(x)) makes; and x."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        shift_GD: Tensor,
        scale_GD: Tensor,
        weight: Tensor,
        bias: Tensor,
        q_weight_E: Tensor,
        k_weight_E: Tensor,
        in_fp8: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        _, normed = rows.norm_modulate(x_RD, shift_GD, scale_GD, None, in_fp8)
        qkv = products.linear(normed, weight, bias).unflatten(-1, (3, -1, len(q_weight_E)))
        q, k = rows.head_norm(qkv, q_weight_E, k_weight_E)
        ctx.save_for_backward(x_RD, shift_GD, scale_GD, weight, qkv, q_weight_E, k_weight_E)
        ctx.in_fp8 = in_fp8
        return q, k, qkv[:, 2], x_RD.view_as(x_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        d_q, d_k, d_v, d_x = grads
        x, shift, scale, weight, qkv, *norms = ctx.saved_tensors
        d_qkv, operand, *d_weights = rows.head_norm_backward(
            qkv, norms[0], norms[1], d_q, d_k, d_v, ctx.in_fp8
        )
        d_normed = products.input_gradient(operand, weight)
        d_x, _, normed, d_shift, d_scale, _ = rows.norm_modulate_backward(
            x, d_normed, d_x, shift, scale
        )
        own = _of_linear(ctx.needs_input_grad[3], d_qkv, normed)
        return d_x, d_shift, d_scale, *own, *d_weights, None


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


class GatedQueries(torch.autograd.Function):
    """linear_q(y) [R, C], and y = x + linear(branch) * gate, [R, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        x_RD: Tensor,
        branch_RD: Tensor,
        gate_GD: Tensor,
        weight: Tensor,
        bias: Tensor,
        q_weight: Tensor,
        q_bias: Tensor,
        in_fp8: bool,
    ) -> tuple[Tensor, Tensor]:
        made = products.linear(products.operand(branch_RD, in_fp8), weight, bias)
        y, operand = rows.add_gated(x_RD, made, gate_GD, in_fp8)
        ctx.save_for_backward(branch_RD, made, gate_GD, weight, y, q_weight)
        ctx.in_fp8 = in_fp8
        return products.linear(operand, q_weight, q_bias), y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        d_q, d_y = grads
        branch, made, gate, weight, y, q_weight = ctx.saved_tensors
        of_q = _of_linear(ctx.needs_input_grad[5], d_q, y)
        d_y, more = products.passing_gradient(products.gradient(d_q, ctx.in_fp8), q_weight, d_y)
        d_x, d_made, operand, d_gate, d_bias = rows.add_gated_backward(
            d_y, made, gate, more, ctx.in_fp8
        )
        d_weight = d_made.mT @ branch if ctx.needs_input_grad[3] else None
        d_branch = products.input_gradient(operand, weight)
        return d_x, d_branch, d_gate, d_weight, d_bias, *of_q, None


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
        return rows.add_gated(y, made, gate_GD)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Grad, ...]:
        (d_out,) = grads
        text, y, hidden, made, shift, scale, gate, text_weight, weight_1, weight_2 = (
            ctx.saved_tensors
        )
        _, d_made, operand, d_gate, d_bias_2 = rows.add_gated_backward(
            d_out, made, gate, None, ctx.in_fp8
        )
        d_hidden, operand, active, d_bias_1 = products.gelu_backward(operand, weight_2, hidden)
        learns = ctx.needs_input_grad[7]
        d_weight_2 = d_made.mT @ active if learns else None
        del d_made, active
        d_normed = products.input_gradient(operand, weight_1)
        d_y, operand, normed, d_shift, d_scale, d_text_bias = rows.norm_modulate_backward(
            y, d_normed, d_out, shift, scale, ctx.in_fp8
        )
        del d_normed
        d_weight_1, d_text_weight = (
            d.mT @ x if learns else None for d, x in ((d_hidden, normed), (d_y, text))
        )
        d_linears = (d_text_weight, d_text_bias, d_weight_1, d_bias_1, d_weight_2, d_bias_2)
        d_text = products.input_gradient(operand, text_weight)
        return d_y, d_text, d_shift, d_scale, d_gate, *d_linears, None


def _of_linear(learns: bool, d_out_RC: Tensor, x_RD: Tensor) -> tuple[Grad, Grad]:
    """Gradients of weight [C, D] and bias [C]."""
    return products.weight_gradient(d_out_RC, x_RD) if learns else (None, None)


def _pair(first: Tensor | None, second: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if first is None or second is None else (first, second)
