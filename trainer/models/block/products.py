"""The block's matrix products: in the working precision, or of fp8 matrices.

One place chooses. Forward, the kind of the input decides: rows as they are, or in fp8 (`Scaled`).
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
from trainer.models.block.fp8 import Scaled

# R rows · K width of an input · C width of an output
Operand = Tensor | Scaled


def operand(x_RK: Tensor, in_fp8: bool) -> Operand:
    """`x` as the input of a product."""
    return rows.scaled(x_RK, fp8.E4M3) if in_fp8 else x_RK


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


def input_gradient(
    d_out_RC: Tensor, weight_CK: Tensor, in_fp8: bool, more_RK: Tensor | None = None
) -> Tensor:
    """Of a linear layer's input, [R, K]; `more` is what it has from elsewhere."""
    if in_fp8:
        weight = rows.scaled(weight_CK.mT.contiguous(), fp8.E4M3)
        d_out = rows.scaled(d_out_RC, fp8.E5M2)
        made = fp8.product(d_out, weight, weight_CK.dtype, fast=False)
        return made if more_RK is None else made.add_(more_RK)
    return d_out_RC @ weight_CK if more_RK is None else torch.addmm(more_RK, d_out_RC, weight_CK)


def gelu_backward(
    d_out_RK: Tensor, weight_KC: Tensor, hidden_RC: Tensor, in_fp8: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Behind the product with `weight`: the gradient of GELU's input [R, C], GELU's output again
    [R, C], and the gradient of the bias before it [C]."""
    if in_fp8:
        return rows.gelu_backward(hidden_RC, input_gradient(d_out_RK, weight_KC, True))
    return epilogues.gelu_backward(d_out_RK, weight_KC, hidden_RC)


weight_gradient = epilogues.weight_gradient
