# mypy: ignore-errors
"""The kernels that give rows in fp8 with their scales; importing this needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.models.attention.sums_kernels import added_up
from trainer.models.block.fp8 import LEAST, Operand, Scaled, largest

CHUNK = 32  # rows of hidden values: 863 programs for two clips of 360p:51, for 132 processors
_LINES, _COLUMNS = 256, 16  # of a weight at once: 32 bytes are read together


@triton.jit
def put_scale(most, row, scales_ptr, LARGEST: tl.constexpr):
    """Write the scale of a row with that largest value; gives what the row is multiplied by."""
    most = tl.maximum(most, 1e-12)  # LEAST
    tl.store(scales_ptr + row, most / LARGEST)
    return LARGEST / most


@triton.jit
def put_scaled(
    value, mask, column, row, out_ptr, scales_ptr, WIDTH: tl.constexpr, LARGEST: tl.constexpr
):
    """Write a row that is in registers, in fp32, as fp8, and its scale."""
    most = tl.max(tl.where(mask, tl.abs(value), 0.0), 0)
    value *= put_scale(most, row, scales_ptr, LARGEST)
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


@triton.jit
def _transposed(
    x_ptr,
    out_ptr,
    scales_ptr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """A program reads COLUMNS columns of [HEIGHT, WIDTH], twice: they are rows of `out`."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    most = tl.zeros([COLUMNS], tl.float32)
    for first in range(0, HEIGHT, LINES):
        line = first + tl.arange(0, LINES)
        mask = (line < HEIGHT)[:, None] & inside[None, :]
        x = tl.load(x_ptr + line[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        most = tl.maximum(most, tl.max(tl.abs(x.to(tl.float32)), 0))
    most = tl.maximum(most, 1e-12)  # LEAST
    tl.store(scales_ptr + column, most / LARGEST, mask=inside)
    factor = (LARGEST / most)[None, :]
    for first in range(0, HEIGHT, LINES):
        line = first + tl.arange(0, LINES)
        mask = (line < HEIGHT)[:, None] & inside[None, :]
        x = tl.load(x_ptr + line[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        value = (x.to(tl.float32) * factor).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + column[None, :] * HEIGHT + line[:, None], value, mask=mask)


@triton.jit
def gelu_back(x, d_out):
    """gelu(x) = x sigmoid(2u) with 2u = 1.5957691216 (x + 0.044715 x^3): gradient and output."""
    gate = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    slope = gate + x * gate * (1.0 - gate) * (1.5957691216057308 + 0.21406444881780076 * x * x)
    return d_out * slope, x * gate


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward_scaled(
    x_ptr,
    d_ptr,
    out_ptr,
    values_ptr,
    scales_ptr,
    sums_ptr,
    rows,
    WIDTH: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """d_out becomes d_x. A row is in two parts of a power of two, 4096 and 512 of 4608: in one of
    8192 almost half of the threads' work would be for nothing."""
    program = tl.program_id(0).to(tl.int64)
    first = program * ROWS
    last = tl.minimum(first + ROWS, rows)
    column = tl.arange(0, MAIN)
    total = tl.zeros([MAIN], tl.float32)
    other = MAIN + tl.arange(0, REST)
    inside = other < WIDTH
    other_total = tl.zeros([REST], tl.float32)
    for row in range(first, last):
        at, beside = row * WIDTH + column, row * WIDTH + other
        x, d = tl.load(x_ptr + at), tl.load(d_ptr + at)
        other_x = tl.load(x_ptr + beside, mask=inside, other=0.0)
        other_d = tl.load(d_ptr + beside, mask=inside, other=0.0)
        d, out = gelu_back(x.to(tl.float32), d.to(tl.float32))
        other_d, other_out = gelu_back(other_x.to(tl.float32), other_d.to(tl.float32))
        total += d
        other_total += other_d
        tl.store(d_ptr + at, d.to(d_ptr.dtype.element_ty))
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty))
        tl.store(d_ptr + beside, other_d.to(d_ptr.dtype.element_ty), mask=inside)
        tl.store(out_ptr + beside, other_out.to(out_ptr.dtype.element_ty), mask=inside)
        most = tl.maximum(tl.max(tl.abs(d), 0), tl.max(tl.abs(other_d), 0))
        factor = put_scale(most, row, scales_ptr, LARGEST)
        tl.store(values_ptr + at, (d * factor).to(values_ptr.dtype.element_ty))
        other_d = (other_d * factor).to(values_ptr.dtype.element_ty)
        tl.store(values_ptr + beside, other_d, mask=inside)
    tl.store(sums_ptr + program * WIDTH + column, total)
    tl.store(sums_ptr + program * WIDTH + other, other_total, mask=inside)


assert LEAST == 1e-12  # a kernel reads no name of its module


# --- calls ---


def room(
    like_RK: Tensor, dtype: torch.dtype, in_fp8: bool
) -> tuple[Operand, tuple[Tensor, Tensor], float]:
    """For a kernel that writes rows [R, K], and with `in_fp8` in that format, too: the operand
    that they are, where values and scales go, and LARGEST (0: they go nowhere)."""
    if not in_fp8:
        return like_RK, (like_RK, like_RK), 0
    scales = torch.empty(len(like_RK), 1, dtype=torch.float32, device=like_RK.device)
    made = Scaled(torch.empty_like(like_RK, dtype=dtype), scales)
    return made, (made.values_RK, made.scales_R1), largest(dtype)


def scaled(x_RK: Tensor, dtype: torch.dtype, gelu: bool) -> Scaled:
    x, (rows, width) = x_RK.contiguous(), x_RK.shape
    made, places, most = room(x, dtype, True)
    with torch.cuda.device_of(x):
        _scaled[(rows,)](x, *places, LARGEST=most, GELU=gelu, **whole(width))
    return made


def scaled_transposed(weight_CK: Tensor, dtype: torch.dtype) -> Scaled:
    weight, (height, width) = weight_CK.contiguous(), weight_CK.shape
    made, places, most = room(weight.new_empty(width, height), dtype, True)
    with torch.cuda.device_of(weight):
        grid = (triton.cdiv(width, _COLUMNS),)
        _transposed[grid](weight, *places, LARGEST=most, **tiles(height, width))
    return made


def gelu_backward(
    x_RH: Tensor, d_out_RH: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Scaled, Tensor, Tensor]:
    rows, width = x_RH.shape
    chunks = triton.cdiv(rows, CHUNK)
    out = torch.empty_like(x_RH)
    made, places, most = room(x_RH, dtype, True)
    sums = torch.empty(1, chunks, 1, width, dtype=torch.float32, device=x_RH.device)
    with torch.cuda.device_of(x_RH):
        _gelu_backward_scaled[(chunks,)](
            x_RH, d_out_RH, out, *places, sums, rows, ROWS=CHUNK, LARGEST=most, **parts(width)
        )
        _, d_bias = added_up(sums, 0, x_RH.dtype)
    return d_out_RH, made, out, d_bias


def whole(width: int) -> dict[str, int]:
    """Of a row in one part."""
    columns = triton.next_power_of_2(width)
    return {"WIDTH": width, "COLUMNS": columns, "num_warps": warps_of(columns)}


def warps_of(columns: int) -> int:
    """Of 32 threads, for a program that holds a row of so many values."""
    return 4 if columns <= 2048 else 8 if columns <= 8192 else 16


def tiles(height: int, width: int) -> dict[str, int]:
    """Of a weight [C, K]."""
    sizes = {"HEIGHT": height, "WIDTH": width, "LINES": _LINES, "COLUMNS": _COLUMNS}
    return {**sizes, "num_warps": 4}


def parts(width: int) -> dict[str, int]:
    """Of a row: the largest power of two in it, and what is left, of at least one value."""
    columns = triton.next_power_of_2(width)
    main = columns if columns == width else columns // 2
    rest = triton.next_power_of_2(max(width - main, 1))
    return {"WIDTH": width, "MAIN": main, "REST": rest, "num_warps": 4 if main <= 2048 else 8}
