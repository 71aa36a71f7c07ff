"""The block's matrix products: in the working precision, or of fp8 matrices.

One place chooses: the kind of the operand decides, rows as they are, or in fp8 (`Scaled`). Most
come from the kernel that writes the rows (`block.rows`); `operand` and `gradient` are for those
that attention has written.

In fp8 the products of forward passes and of gradients of inputs run, two thirds of the arithmetic.
Gradients of weights stay in the working precision, as in torchao's recipe rowwise_with_gw_hp: they
add up over all tokens, where torchao found fp8 to cost accuracy most, and both matrices would be
needed a second time, transposed and with scales of their columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.block import epilogues, fp8, rows
from trainer.models.block.fp8 import Operand, Scaled

# R rows · K width of an input · C width of an output


def operand(x_RK: Tensor, in_fp8: bool) -> Operand:
    """`x` as the input of a product."""
    return rows.scaled(x_RK, fp8.E4M3) if in_fp8 else x_RK


def gradient(d_RC: Tensor, in_fp8: bool) -> Operand:
    """The same of a gradient."""
    return rows.scaled(d_RC, fp8.E5M2) if in_fp8 else d_RC


def linear(x_RK: Operand, weight_CK: Tensor, bias_C: Tensor) -> Tensor:
    """[R, C]."""
    if isinstance(x_RK, Scaled):
        weight = rows.scaled(weight_CK, fp8.E4M3)
        return fp8.product(x_RK, weight, weight_CK.dtype, bias_C, fast=True)
    return F.linear(x_RK, weight_CK, bias_C)


def gelu_linear(x_RK: Operand, weight_CK: Tensor, bias_C: Tensor) -> tuple[Operand, Tensor]:
    """gelu(h) in the tanh form as the input of a product, and h = linear(x), each [R, C]."""
    if isinstance(x_RK, Scaled):
        hidden = linear(x_RK, weight_CK, bias_C)
        return rows.scaled(hidden, fp8.E4M3, gelu=True), hidden
    return epilogues.gelu_linear(x_RK, weight_CK, bias_C)


def input_gradient(d_out_RC: Operand, weight_CK: Tensor) -> Tensor:
    """Of a linear layer's input, [R, K]."""
    if isinstance(d_out_RC, Scaled):
        weight = rows.scaled_transposed(weight_CK)
        return fp8.product(d_out_RC, weight, weight_CK.dtype, fast=False)
    return d_out_RC @ weight_CK


def passing_gradient(
    d_out_RC: Operand, weight_CK: Tensor, d_x_RK: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Of a linear layer's input, whose gradient from elsewhere is `d_x`: their sum [R, K]; in fp8
    both, for the kernel that reads them next."""
    if isinstance(d_out_RC, Scaled):
        return input_gradient(d_out_RC, weight_CK), d_x_RK
    return torch.addmm(d_x_RK, d_out_RC, weight_CK), None


def gelu_backward(
    d_out_RK: Operand, weight_KC: Tensor, hidden_RC: Tensor
) -> tuple[Tensor, Operand, Tensor, Tensor]:
    """Behind the product with `weight`: the gradient of GELU's input [R, C] and it as an operand,
    GELU's output again [R, C], and the gradient of the bias before it [C]."""
    if isinstance(d_out_RK, Scaled):
        return rows.gelu_backward(hidden_RC, input_gradient(d_out_RK, weight_KC), True)
    d_hidden, out, d_bias = epilogues.gelu_backward(d_out_RK, weight_KC, hidden_RC)
    return d_hidden, d_hidden, out, d_bias


weight_gradient = epilogues.weight_gradient
