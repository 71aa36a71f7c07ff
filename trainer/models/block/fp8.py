"""Matrices in fp8 with a scale for each row, and their products: `fp8_linears`.

The two formats share the work as in Transformer Engine's hybrid: e4m3 (3 bits of mantissa, up to
448) for activations and weights, e5m2 (2 bits, up to 57,344) for gradients, which spread wider.
Each scale is of the row's own largest value, as in torchao's rowwise recipe: one large value costs
its row precision and no other, and a row is in registers when its largest value is wanted. Nothing
is kept from step to step, so checkpoints hold no state for it.

Elsewhere than on a GPU values are rounded to fp8 in the same way and multiplied in fp32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.errors import ConfigError, EngineError
from trainer.models.fused import wide
from trainer.models.stdit_config import STDiT3Config

# R rows · K width of an input · C width of an output
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LEAST = 1e-12  # of a row's largest value: rows of zeros have a scale, too
_MULTIPLE = 16  # of widths: what torch._scaled_mm takes
_FIRST_CAPABILITY = (8, 9)


class Scaled(NamedTuple):
    """values * scales is the matrix."""

    values_RK: Tensor  # fp8
    scales_R1: Tensor  # fp32, fp64 of an fp64 matrix


Operand = Tensor | Scaled  # of a product


def largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


def scaled(x_RK: Tensor, dtype: torch.dtype) -> Scaled:
    """By torch's operations; `rows.scaled` takes a kernel where there is one."""
    x = x_RK.to(wide(x_RK.dtype))
    most = x.abs().amax(-1, keepdim=True).clamp_min(LEAST)
    return Scaled((x * (largest(dtype) / most)).to(dtype), most / largest(dtype))


def product(
    a: Scaled, b: Scaled, dtype: torch.dtype, bias_C: Tensor | None = None, *, fast: bool
) -> Tensor:
    """a [R, K] b^T [K, C] + bias, in `dtype`. With `fast` a GPU sums up in its tensor cores' own
    precision, as is usual forward; else parts of the sum go to fp32 in between."""
    (left, left_scales), (right, right_scales) = a, b
    if left.is_cuda:
        return torch._scaled_mm(
            left,
            right.mT,
            left_scales,
            right_scales.mT,
            bias=bias_C,
            out_dtype=dtype,
            use_fast_accum=fast,
        )
    exact = wide(dtype)
    made = left.to(exact) @ right.to(exact).mT * (left_scales * right_scales.mT).to(exact)
    return (made if bias_C is None else made + bias_C).to(dtype)


def require_widths(config: STDiT3Config) -> None:
    """Whether the widths of its products can be in fp8. Raises ConfigError."""
    width, heads = config.hidden_size, config.num_heads
    if width % _MULTIPLE:
        step = math.lcm(_MULTIPLE, 2 * heads)  # each head has an even width
        text = f"fp8_linears needs a model.hidden_size of a multiple of {_MULTIPLE}, not {width}"
        nearest = f"the nearest with {heads} heads is {max(1, round(width / step)) * step}"
        raise ConfigError(text, hint=f"{nearest}; or leave fp8_linears out")
    inner = int(width * config.mlp_ratio)
    if inner % _MULTIPLE:
        text = f"model.mlp_ratio {config.mlp_ratio:g} makes an MLP of width {inner}"
        good = max(1, round(inner / _MULTIPLE)) * _MULTIPLE
        ratio = math.ceil(good / width * 1e4) / 1e4  # its product is rounded down
        raise ConfigError(
            f"{text}, and fp8_linears needs a multiple of {_MULTIPLE}",
            hint=f"model.mlp_ratio {ratio:g} makes {good}; or leave fp8_linears out",
        )


def require(device: str, itemsize: int, *, ours: bool) -> None:
    """Whether blocks can run in fp8 there; `ours`: by our kernels on a GPU. Raises ConfigError for
    what is asked, EngineError for the machine."""
    if device != "cuda":
        return
    if not ours:
        what = 'dtype "bf16"' if itemsize != 2 else "fused_blocks, and heads that they take"
        raise ConfigError(f"fp8_linears on a GPU needs {what}", hint="leave fp8_linears out")
    if torch.version.hip is not None:
        raise EngineError("fp8_linears is for NVIDIA GPUs; AMD's have other formats of fp8")
    capability = torch.cuda.get_device_capability()
    if capability < _FIRST_CAPABILITY:
        name, number = torch.cuda.get_device_name(), ".".join(map(str, capability))
        text = f"fp8_linears needs a GPU of compute capability 8.9 or newer; {name} has {number}"
        raise EngineError(text, hint="set fp8_linears = False")
