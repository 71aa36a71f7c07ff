# mypy: ignore-errors
"""The kernels of `block.rows`; importing this needs Triton.

A row is whole in the registers of a program, in fp32. Programs of a forward pass have one row each.
Those of a backward pass go over CHUNK rows of one modulation and leave sums over them, [D] in fp32;
one more kernel adds up these parts, in a fixed order.

With LARGEST, the largest value of a format of fp8, a kernel writes in that, too, what a product
reads next: from its registers, as it rounds them for the rows beside.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.models.attention.sums_kernels import added_up
from trainer.models.block import fp8
from trainer.models.block.fp8_kernels import gelu_back, put_scale, put_scaled, room, warps_of
from trainer.models.fused import NORM_EPS

CHUNK = 32  # rows: 3,450 programs at 360p:51, and sums of 1/16 of a tensor's bytes
_GELU_CHUNK, _GELU_ROWS, _GELU_COLUMNS = 128, 8, 256


@triton.jit
def _row(pointer, at, column, mask):
    return tl.load(pointer + at + column, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _put(pointer, at, column, mask, value):
    tl.store(pointer + at + column, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _normal(x, mask, WIDTH: tl.constexpr, eps):
    """Mean 0 and deviation 1; 1 / the deviation."""
    middle = tl.where(mask, x - tl.sum(x, 0) / WIDTH, 0.0)
    rstd = tl.rsqrt(tl.sum(middle * middle, 0) / WIDTH + eps)
    return middle * rstd, rstd


@triton.jit(do_not_specialize=["rows"])
def _norm_modulate(
    x_ptr,
    branch_ptr,
    shift_ptr,
    scale_ptr,
    sum_ptr,
    out_ptr,
    scales_ptr,
    shift_stride,
    scale_stride,
    rows,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = row // rows
    column = tl.arange(0, COLUMNS)
    mask = column < WIDTH
    x = _row(x_ptr, row * WIDTH, column, mask)
    if ADDS:
        x += _row(branch_ptr, row * WIDTH, column, mask)
        x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)  # what the backward pass will read
        _put(sum_ptr, row * WIDTH, column, mask, x)
    normal, _ = _normal(x, mask, WIDTH, eps)
    scale = _row(scale_ptr, group * scale_stride, column, mask)
    shift = _row(shift_ptr, group * shift_stride, column, mask)
    out = normal * (1.0 + scale) + shift
    if LARGEST > 0:  # of fp8
        put_scaled(out, mask, column, row, out_ptr, scales_ptr, WIDTH, LARGEST)
    else:
        _put(out_ptr, row * WIDTH, column, mask, out)


@triton.jit(do_not_specialize=["rows", "chunks"])
def _norm_modulate_backward(
    x_ptr,
    d_out_ptr,
    d_from_ptr,
    shift_ptr,
    scale_ptr,
    d_x_ptr,
    out_ptr,
    values_ptr,
    scales_ptr,
    sums_ptr,
    shift_stride,
    scale_stride,
    rows,
    chunks,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    group = program // chunks
    first = (program % chunks) * ROWS
    last = tl.minimum(first + ROWS, rows)
    column = tl.arange(0, COLUMNS)
    mask = column < WIDTH
    factor = 1.0 + _row(scale_ptr, group * scale_stride, column, mask)
    shift = _row(shift_ptr, group * shift_stride, column, mask)
    d_shift = tl.zeros([COLUMNS], tl.float32)
    d_scale = tl.zeros([COLUMNS], tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for row in range(first, last):
        at = (group * rows + row) * WIDTH
        x = _row(x_ptr, at, column, mask)
        d_out = _row(d_out_ptr, at, column, mask)
        normal, rstd = _normal(x, mask, WIDTH, eps)
        _put(out_ptr, at, column, mask, normal * factor + shift)
        d_shift += d_out
        d_scale += d_out * normal
        d_normal = tl.where(mask, d_out * factor, 0.0)
        mean = tl.sum(d_normal, 0) / WIDTH
        along = tl.sum(d_normal * normal, 0) / WIDTH
        d_x = rstd * (d_normal - mean - normal * along)
        if ADDS:
            d_x += _row(d_from_ptr, at, column, mask)
        total += tl.where(mask, d_x, 0.0)
        _put(d_x_ptr, at, column, mask, d_x)
        if LARGEST > 0:
            line = group * rows + row
            put_scaled(d_x, mask, column, line, values_ptr, scales_ptr, WIDTH, LARGEST)
    to = program * 3 * WIDTH
    _put(sums_ptr, to, column, mask, d_shift)
    _put(sums_ptr, to + WIDTH, column, mask, d_scale)
    _put(sums_ptr, to + 2 * WIDTH, column, mask, total)


@triton.jit(do_not_specialize=["rows"])
def _add_gated(
    x_ptr,
    branch_ptr,
    gate_ptr,
    out_ptr,
    values_ptr,
    scales_ptr,
    gate_stride,
    rows,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < WIDTH
    gate = _row(gate_ptr, row // rows * gate_stride, column, mask)
    x = _row(x_ptr, row * WIDTH, column, mask)
    out = x + gate * _row(branch_ptr, row * WIDTH, column, mask)
    _put(out_ptr, row * WIDTH, column, mask, out)
    if LARGEST > 0:
        put_scaled(out, mask, column, row, values_ptr, scales_ptr, WIDTH, LARGEST)


@triton.jit(do_not_specialize=["rows", "chunks"])
def _add_gated_backward(
    d_out_ptr,
    branch_ptr,
    gate_ptr,
    more_ptr,
    d_branch_ptr,
    values_ptr,
    scales_ptr,
    sums_ptr,
    gate_stride,
    rows,
    chunks,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    group = program // chunks
    first = (program % chunks) * ROWS
    last = tl.minimum(first + ROWS, rows)
    column = tl.arange(0, COLUMNS)
    mask = column < WIDTH
    gate = _row(gate_ptr, group * gate_stride, column, mask)
    d_gate = tl.zeros([COLUMNS], tl.float32)
    d_branch = tl.zeros([COLUMNS], tl.float32)
    for row in range(first, last):
        at = (group * rows + row) * WIDTH
        d_out = _row(d_out_ptr, at, column, mask)
        if ADDS:
            d_out += _row(more_ptr, at, column, mask)
            _put(d_out_ptr, at, column, mask, d_out)
        d_gate += d_out * _row(branch_ptr, at, column, mask)
        d_branch += d_out * gate
        _put(d_branch_ptr, at, column, mask, d_out * gate)
        if LARGEST > 0:
            line = group * rows + row
            put_scaled(d_out * gate, mask, column, line, values_ptr, scales_ptr, WIDTH, LARGEST)
    _put(sums_ptr, program * 2 * WIDTH, column, mask, d_gate)
    _put(sums_ptr, (program * 2 + 1) * WIDTH, column, mask, d_branch)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(
    x_ptr,
    d_ptr,
    out_ptr,
    sums_ptr,
    rows,
    WIDTH: tl.constexpr,
    CHUNK_: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """d_out becomes d_x."""
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros([COLUMNS], tl.float32)
    for step in range(CHUNK_ // ROWS):
        row = chunk * CHUNK_ + step * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * WIDTH + column[None, :]
        mask = (row < rows)[:, None] & inside[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        d_out = tl.load(d_ptr + at, mask=mask, other=0.0).to(tl.float32)
        d_x, out = gelu_back(x, d_out)
        total += tl.sum(d_x, 0)
        tl.store(d_ptr + at, d_x.to(d_ptr.dtype.element_ty), mask=mask)
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(sums_ptr + chunk * WIDTH + column, total, mask=inside)


@triton.jit
def _head_norm(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    q_ptr,
    k_ptr,
    row_stride,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    line, column = tl.arange(0, LINES), tl.arange(0, COLUMNS)
    inside = column < WIDTH
    mask = (line < HEADS)[:, None] & inside[None, :]
    offset = line[:, None] * WIDTH + column[None, :]
    size: tl.constexpr = HEADS * WIDTH
    for part in tl.static_range(2):
        x = _row(qkv_ptr, row * row_stride + part * size, offset, mask)
        rms = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]
        weight = _row(q_weight_ptr if part == 0 else k_weight_ptr, 0, column, inside)[None, :]
        to = q_ptr if part == 0 else k_ptr
        value = (x * rms * weight).to(to.dtype.element_ty)
        tl.store(to + row * size + offset, value, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _head_norm_backward(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    d_q_ptr,
    d_k_ptr,
    d_v_ptr,
    d_qkv_ptr,
    values_ptr,
    scales_ptr,
    sums_ptr,
    row_stride,
    d_q_stride,
    d_k_stride,
    d_v_stride,
    rows,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    first = program * ROWS
    last = tl.minimum(first + ROWS, rows)
    line, column = tl.arange(0, LINES), tl.arange(0, COLUMNS)
    inside = column < WIDTH
    mask = (line < HEADS)[:, None] & inside[None, :]
    offset = line[:, None] * WIDTH + column[None, :]
    size: tl.constexpr = HEADS * WIDTH
    q_weight = _row(q_weight_ptr, 0, column, inside)[None, :]
    k_weight = _row(k_weight_ptr, 0, column, inside)[None, :]
    d_q_weight = tl.zeros([LINES, COLUMNS], tl.float32)
    d_k_weight = tl.zeros([LINES, COLUMNS], tl.float32)
    for row in range(first, last):
        at, to = row * row_stride, row * 3 * size
        for part in tl.static_range(2):
            x = _row(qkv_ptr, at + part * size, offset, mask)
            if part == 0:
                d = _row(d_q_ptr, row * d_q_stride, offset, mask)
            else:
                d = _row(d_k_ptr, row * d_k_stride, offset, mask)
            rms = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]
            normal = x * rms
            if part == 0:
                d_q_weight += d * normal
                d_normal = d * q_weight
            else:
                d_k_weight += d * normal
                d_normal = d * k_weight
            along = (tl.sum(d_normal * normal, 1) / WIDTH)[:, None]
            value = rms * (d_normal - normal * along)
            place = d_qkv_ptr + to + part * size + offset
            tl.store(place, value.to(d_qkv_ptr.dtype.element_ty), mask=mask)
            if part == 0:
                d_q = value
            else:
                d_k = value
        d_v = tl.load(d_v_ptr + row * d_v_stride + offset, mask=mask, other=0.0)
        tl.store(d_qkv_ptr + to + 2 * size + offset, d_v, mask=mask)
        if LARGEST > 0:  # of the whole row
            d_v = d_v.to(tl.float32)
            most = tl.maximum(tl.maximum(tl.abs(d_q), tl.abs(d_k)), tl.abs(d_v))
            factor = put_scale(tl.max(tl.max(most, 1), 0), row, scales_ptr, LARGEST)
            _put(values_ptr, to, offset, mask, d_q * factor)
            _put(values_ptr, to + size, offset, mask, d_k * factor)
            _put(values_ptr, to + 2 * size, offset, mask, d_v * factor)
    _put(sums_ptr, program * 2 * WIDTH, column, inside, tl.sum(d_q_weight, 0))
    _put(sums_ptr, (program * 2 + 1) * WIDTH, column, inside, tl.sum(d_k_weight, 0))


# --- calls ---


def norm_modulate(
    x_RD: Tensor, shift_GD: Tensor, scale_GD: Tensor, branch_RD: Tensor | None, in_fp8: bool
) -> tuple[Tensor, fp8.Operand]:
    rows, width = x_RD.shape
    out = torch.empty_like(x_RD, dtype=fp8.E4M3 if in_fp8 else None)
    scales = _fp32(x_RD, rows, 1) if in_fp8 else out
    total = x_RD if branch_RD is None else torch.empty_like(x_RD)
    with torch.cuda.device_of(x_RD):
        _norm_modulate[(rows,)](
            x_RD,
            branch_RD if branch_RD is not None else x_RD,
            shift_GD,
            scale_GD,
            total,
            out,
            scales,
            shift_GD.stride(0),
            scale_GD.stride(0),
            rows // len(scale_GD),
            NORM_EPS,
            WIDTH=width,
            ADDS=branch_RD is not None,
            LARGEST=fp8.largest(fp8.E4M3) if in_fp8 else 0,
            **_across(width),
        )
    return total, fp8.Scaled(out, scales) if in_fp8 else out


def norm_modulate_backward(
    x_RD: Tensor,
    d_out_RD: Tensor,
    d_x_RD: Tensor | None,
    shift_GD: Tensor,
    scale_GD: Tensor,
    in_fp8: bool,
) -> tuple[Tensor, fp8.Operand, Tensor, Tensor, Tensor, Tensor]:
    (rows, width), groups = x_RD.shape, len(scale_GD)
    each = rows // groups
    chunks = triton.cdiv(each, CHUNK)
    d_x, out = torch.empty_like(x_RD), torch.empty_like(x_RD)
    operand, places, largest = room(d_x, fp8.E5M2, in_fp8)
    sums = _fp32(x_RD, groups, chunks, 3, width)
    with torch.cuda.device_of(x_RD):
        _norm_modulate_backward[(groups * chunks,)](
            x_RD,
            d_out_RD,
            d_x_RD if d_x_RD is not None else x_RD,
            shift_GD,
            scale_GD,
            d_x,
            out,
            *places,
            sums,
            shift_GD.stride(0),
            scale_GD.stride(0),
            each,
            chunks,
            NORM_EPS,
            WIDTH=width,
            ROWS=CHUNK,
            ADDS=d_x_RD is not None,
            LARGEST=largest,
            **_across(width, in_fp8),
        )
        modulations, total = added_up(sums, 2, x_RD.dtype)
    return d_x, operand, out, *modulations, total


def add_gated(
    x_RD: Tensor, branch_RD: Tensor, gate_GD: Tensor, in_fp8: bool
) -> tuple[Tensor, fp8.Operand]:
    rows, width = x_RD.shape
    out = torch.empty_like(x_RD)
    operand, places, largest = room(out, fp8.E4M3, in_fp8)
    with torch.cuda.device_of(x_RD):
        _add_gated[(rows,)](
            x_RD,
            branch_RD,
            gate_GD,
            out,
            *places,
            gate_GD.stride(0),
            rows // len(gate_GD),
            WIDTH=width,
            LARGEST=largest,
            **_across(width),
        )
    return out, operand


def add_gated_backward(
    d_out_RD: Tensor, branch_RD: Tensor, gate_GD: Tensor, more_RD: Tensor | None, in_fp8: bool
) -> tuple[Tensor, Tensor, fp8.Operand, Tensor, Tensor]:
    (rows, width), groups = d_out_RD.shape, len(gate_GD)
    each = rows // groups
    chunks = triton.cdiv(each, CHUNK)
    d_branch = torch.empty_like(d_out_RD)
    operand, places, largest = room(d_branch, fp8.E5M2, in_fp8)
    sums = _fp32(d_out_RD, groups, chunks, 2, width)
    with torch.cuda.device_of(d_out_RD):
        _add_gated_backward[(groups * chunks,)](
            d_out_RD,
            branch_RD,
            gate_GD,
            more_RD if more_RD is not None else d_out_RD,
            d_branch,
            *places,
            sums,
            gate_GD.stride(0),
            each,
            chunks,
            WIDTH=width,
            ROWS=CHUNK,
            ADDS=more_RD is not None,
            LARGEST=largest,
            **_across(width),
        )
        (d_gate,), d_bias = added_up(sums, 1, d_out_RD.dtype)
    return d_out_RD, d_branch, operand, d_gate, d_bias


def gelu_backward(x_RH: Tensor, d_out_RH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x_RH.shape
    chunks = triton.cdiv(rows, _GELU_CHUNK)
    out = torch.empty_like(x_RH)
    sums = _fp32(x_RH, chunks, width)
    with torch.cuda.device_of(x_RH):
        _gelu_backward[(chunks, triton.cdiv(width, _GELU_COLUMNS))](
            x_RH,
            d_out_RH,
            out,
            sums,
            rows,
            WIDTH=width,
            CHUNK_=_GELU_CHUNK,
            ROWS=_GELU_ROWS,
            COLUMNS=_GELU_COLUMNS,
            num_warps=4,
        )
        _, d_bias = added_up(sums[None, :, None], 0, x_RH.dtype)
    return d_out_RH, out, d_bias


def head_norm(qkv_R3NE: Tensor, q_weight_E: Tensor, k_weight_E: Tensor) -> tuple[Tensor, Tensor]:
    rows, _, heads, width = qkv_R3NE.shape
    q, k = (qkv_R3NE.new_empty(rows, heads, width) for _ in range(2))
    with torch.cuda.device_of(qkv_R3NE):
        _head_norm[(rows,)](
            qkv_R3NE,
            q_weight_E,
            k_weight_E,
            q,
            k,
            qkv_R3NE.stride(0),
            NORM_EPS,
            **_tiles(heads, width),
        )
    return q, k


def head_norm_backward(
    qkv_R3NE: Tensor,
    q_weight_E: Tensor,
    k_weight_E: Tensor,
    d_q_RNE: Tensor,
    d_k_RNE: Tensor,
    d_v_RNE: Tensor,
    in_fp8: bool,
) -> tuple[Tensor, fp8.Operand, Tensor, Tensor]:
    rows, _, heads, width = qkv_R3NE.shape
    chunks = triton.cdiv(rows, CHUNK)
    d_qkv = qkv_R3NE.new_empty(rows, 3 * heads * width)
    operand, places, largest = room(d_qkv, fp8.E5M2, in_fp8)
    grads = [d if _is_packed(d) else d.contiguous() for d in (d_q_RNE, d_k_RNE, d_v_RNE)]
    sums = _fp32(qkv_R3NE, chunks, 2, width)
    with torch.cuda.device_of(qkv_R3NE):
        _head_norm_backward[(chunks,)](
            qkv_R3NE,
            q_weight_E,
            k_weight_E,
            *grads,
            d_qkv,
            *places,
            sums,
            qkv_R3NE.stride(0),
            *(d.stride(0) for d in grads),
            rows,
            NORM_EPS,
            ROWS=CHUNK,
            LARGEST=largest,
            **_tiles(heads, width, in_fp8),
        )
        d_weights, _ = added_up(sums[None], 2, qkv_R3NE.dtype)
    return d_qkv, operand, *(d[0] for d in d_weights)


def _is_packed(x_RNE: Tensor) -> bool:
    """Whether a row's heads lie together."""
    return x_RNE.stride()[1:] == (x_RNE.shape[2], 1)


def _fp32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _across(width: int, wide: bool = False) -> dict[str, int]:
    """`wide`: of twice the threads, for the two backward kernels with most registers in fp8: 187 a
    thread in norm_modulate_backward at XL/2's width, of which two programs fit on a processor and
    not three, and some through memory in head_norm_backward (tests.gpu.compiled)."""
    columns = triton.next_power_of_2(width)
    return {"COLUMNS": columns, "num_warps": max(warps_of(columns), 8 if wide else 0)}


def _tiles(heads: int, width: int, wide: bool = False) -> dict[str, int]:
    sizes = {"HEADS": heads, "WIDTH": width}
    sizes |= {"LINES": triton.next_power_of_2(heads), "COLUMNS": triton.next_power_of_2(width)}
    return {**sizes, "num_warps": 8 if wide else 4}
