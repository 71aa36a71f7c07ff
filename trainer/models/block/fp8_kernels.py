# mypy: ignore-errors
"""The kernel that gives rows in fp8 with their scales; importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.models.block.fp8 import LEAST, Scaled, largest


@triton.jit
def put_scaled(
    value, mask, column, row, out_ptr, scales_ptr, WIDTH: tl.constexpr, LARGEST: tl.constexpr
):
    """Write a row that is in registers, in fp32, as fp8, and its scale."""
    most = tl.max(tl.where(mask, tl.abs(value), 0.0), 0)
    most = tl.maximum(most, 1e-12)  # LEAST
    tl.store(scales_ptr + row, most / LARGEST)
    value = value * (LARGEST / most)
    tl.store(out_ptr + row * WIDTH + column, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(
    x_ptr,
    out_ptr,
    scales_ptr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr,
    GELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < WIDTH
    x = tl.load(x_ptr + row * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    if GELU:  # x sigmoid(2u) with 2u = 1.5957691216 (x + 0.044715 x^3)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    put_scaled(x, mask, column, row, out_ptr, scales_ptr, WIDTH, LARGEST)


assert LEAST == 1e-12  # a kernel reads no name of its module


def scaled(x_RK: Tensor, dtype: torch.dtype, gelu: bool) -> Scaled:
    x, (rows, width) = x_RK.contiguous(), x_RK.shape
    values = torch.empty_like(x, dtype=dtype)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    columns = triton.next_power_of_2(width)
    warps = 4 if columns <= 2048 else 8 if columns <= 8192 else 16
    with torch.cuda.device_of(x):
        _scaled[(rows,)](
            x,
            values,
            scales,
            WIDTH=width,
            COLUMNS=columns,
            LARGEST=largest(dtype),
            GELU=gelu,
            num_warps=warps,
        )
    return Scaled(values, scales)
