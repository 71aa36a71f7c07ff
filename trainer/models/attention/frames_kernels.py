# mypy: ignore-errors
"""The kernels of `frames_attention`; importing this needs Triton.

A program has GROUP whole sequences of T frames in a block of ROWS rows. Row r is frame r % T of
sequence r // T, rows behind the last sequence are masked. Sequences are counted over batch, place
and head, heads fastest: they lie side by side, so neighbouring programs read neighbouring bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.models.attention.sums_kernels import added_up
from trainer.models.fused import NORM_EPS, Rotation

Norms = tuple[Tensor, Tensor]  # weights of queries and of keys, [E]
_VARY = ("places", "sequences")  # one program for all of them


@triton.jit
def _rows(strides, frames, places, heads, sequences, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Offset of each row; which sequence of the block it is of; whether there is one.

    Strides come in eighths: the compiler then knows that a row begins at a multiple of 16 bytes.
    """
    row = tl.arange(0, ROWS)
    inside = row // frames
    number = tl.program_id(0).to(tl.int64) * GROUP + inside
    exists = (inside < GROUP) & (number < sequences)
    head = number % heads
    place = number // heads % places
    batch = number // heads // places
    at = batch * strides[0] + row % frames * strides[1] + place * strides[2] + head * strides[3]
    return at * 8, inside, exists


@triton.jit
def _load(pointer, at, exists, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    mask = exists[:, None] & (column < WIDTH)[None, :]
    return tl.load(pointer + at[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(pointer, at, exists, value, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.arange(0, COLUMNS)
    mask = exists[:, None] & (column < WIDTH)[None, :]
    value = value.to(pointer.dtype.element_ty)
    tl.store(pointer + at[:, None] + column[None, :], value, mask=mask)


@triton.jit
def _weights(q, k, inside, exists, scale):
    """Softmax of the scores in fp32, [ROWS, ROWS]; 0 between sequences."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    same = (inside[:, None] == inside[None, :]) & exists[None, :]
    scores = tl.where(same, scores, -1e30)
    weights = tl.where(same, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
    total = tl.sum(weights, 1)
    return weights / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def _tables(
    cos_ptr, sin_ptr, frames, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Of each row and column: the cosine, and the sine with the sign that its partner comes by."""
    column = tl.arange(0, COLUMNS)
    at = (tl.arange(0, ROWS) % frames)[:, None] * (WIDTH // 2) + (column // 2)[None, :]
    mask = (column < WIDTH)[None, :]
    cos = tl.load(cos_ptr + at, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + at, mask=mask, other=0.0)
    return cos, tl.where((column % 2 == 0)[None, :], -sin, sin)


@triton.jit
def _prepared(
    pointer,
    weight_ptr,
    at,
    exists,
    cos,
    sin,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMS: tl.constexpr,
    TURNS: tl.constexpr,
):
    """Rows after the RMS norm, whose pairs are turned, in the tensor's dtype."""
    raw = _load(pointer, at, exists, WIDTH, COLUMNS)
    if not NORMS and not TURNS:
        return raw
    x = raw.to(tl.float32)
    column = tl.arange(0, COLUMNS)
    if NORMS:
        rms = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]
        weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        x = x * rms * weight[None, :]
    if TURNS:
        partner = column ^ 1
        mask = exists[:, None] & (column < WIDTH)[None, :]
        other = tl.load(pointer + at[:, None] + partner[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        if NORMS:
            weight = tl.load(weight_ptr + partner, mask=column < WIDTH, other=0.0).to(tl.float32)
            other = other * rms * weight[None, :]
        x = x * cos + other * sin
    return x.to(raw.dtype)


@triton.jit
def _led_back(
    d,
    pointer,
    weight_ptr,
    sums_ptr,
    at,
    exists,
    cos,
    sin,
    eps,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMS: tl.constexpr,
    TURNS: tl.constexpr,
):
    """Gradients of raw rows from those of prepared ones; what the weight's gradient gets."""
    if TURNS:
        even, odd = tl.split(tl.reshape(d * sin, [ROWS, COLUMNS // 2, 2]))
        d = d * cos + tl.reshape(tl.join(odd, even), [ROWS, COLUMNS])
    if NORMS:
        column = tl.arange(0, COLUMNS)
        x = _load(pointer, at, exists, WIDTH, COLUMNS).to(tl.float32)
        rms = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]
        normal = x * rms
        tl.store(sums_ptr + column, tl.sum(d * normal, 0), mask=column < WIDTH)
        weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        d = d * weight[None, :]
        d = rms * (d - normal * (tl.sum(d * normal, 1) / WIDTH)[:, None])
    return d


@triton.jit(do_not_specialize=_VARY)
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, q_strides, k_strides, v_strides, out_strides,
    q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, eps,
    scale, frames, places, heads, sequences,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    NORMS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    at_q, inside, exists = _rows(q_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_k, _, _ = _rows(k_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_v, _, _ = _rows(v_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_out, _, _ = _rows(out_strides, frames, places, heads, sequences, GROUP, ROWS)
    cos, sin = 1.0, 0.0
    if TURNS:
        cos, sin = _tables(cos_ptr, sin_ptr, frames, WIDTH, ROWS, COLUMNS)
    q = _prepared(q_ptr, q_weight_ptr, at_q, exists, cos, sin, eps, WIDTH, COLUMNS, NORMS, TURNS)
    k = _prepared(k_ptr, k_weight_ptr, at_k, exists, cos, sin, eps, WIDTH, COLUMNS, NORMS, TURNS)
    v = _load(v_ptr, at_v, exists, WIDTH, COLUMNS)
    weights = _weights(q, k, inside, exists, scale)
    out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    _store(out_ptr, at_out, exists, out, WIDTH, COLUMNS)


@triton.jit(do_not_specialize=_VARY)
def _backward(
    q_ptr, k_ptr, v_ptr, grad_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, grad_strides, d_strides,
    q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, sums_ptr, eps,
    scale, frames, places, heads, sequences,
    GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    NORMS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    at_q, inside, exists = _rows(q_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_k, _, _ = _rows(k_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_v, _, _ = _rows(v_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_grad, _, _ = _rows(grad_strides, frames, places, heads, sequences, GROUP, ROWS)
    at_d, _, _ = _rows(d_strides, frames, places, heads, sequences, GROUP, ROWS)
    cos, sin = 1.0, 0.0
    if TURNS:
        cos, sin = _tables(cos_ptr, sin_ptr, frames, WIDTH, ROWS, COLUMNS)
    q = _prepared(q_ptr, q_weight_ptr, at_q, exists, cos, sin, eps, WIDTH, COLUMNS, NORMS, TURNS)
    k = _prepared(k_ptr, k_weight_ptr, at_k, exists, cos, sin, eps, WIDTH, COLUMNS, NORMS, TURNS)
    grad = _load(grad_ptr, at_grad, exists, WIDTH, COLUMNS)
    weights = _weights(q, k, inside, exists, scale)
    d_v = tl.dot(tl.trans(weights.to(grad.dtype)), grad, input_precision="ieee")
    _store(dv_ptr, at_d, exists, d_v, WIDTH, COLUMNS)
    v = _load(v_ptr, at_v, exists, WIDTH, COLUMNS)
    d_weights = tl.dot(grad, tl.trans(v), input_precision="ieee")
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale
    d_scores = d_scores.to(q.dtype)
    to_sums = sums_ptr + tl.program_id(0).to(tl.int64) * (2 * WIDTH)
    d_q = tl.dot(d_scores, k, input_precision="ieee")
    d_q = _led_back(
        d_q,
        q_ptr,
        q_weight_ptr,
        to_sums,
        at_q,
        exists,
        cos,
        sin,
        eps,
        ROWS,
        WIDTH,
        COLUMNS,
        NORMS,
        TURNS,
    )
    _store(dq_ptr, at_d, exists, d_q, WIDTH, COLUMNS)
    d_k = tl.dot(tl.trans(d_scores), q, input_precision="ieee")
    d_k = _led_back(
        d_k,
        k_ptr,
        k_weight_ptr,
        to_sums + WIDTH,
        at_k,
        exists,
        cos,
        sin,
        eps,
        ROWS,
        WIDTH,
        COLUMNS,
        NORMS,
        TURNS,
    )
    _store(dk_ptr, at_d, exists, d_k, WIDTH, COLUMNS)


def forward(
    q_BTSNE: Tensor,
    k_BTSNE: Tensor,
    v_BTSNE: Tensor,
    norms: Norms | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """`norms` and `rotation` prepare queries and keys in registers."""
    out = q_BTSNE.new_empty(q_BTSNE.shape)
    _launch(_forward, [q_BTSNE, k_BTSNE, v_BTSNE, out], 4, norms, rotation)
    return out


def backward(
    q_BTSNE: Tensor, k_BTSNE: Tensor, v_BTSNE: Tensor, grad_BTSNE: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    d_q, d_k, d_v = (q_BTSNE.new_empty(q_BTSNE.shape) for _ in range(3))
    _launch(_backward, [q_BTSNE, k_BTSNE, v_BTSNE, grad_BTSNE, d_q, d_k, d_v], 5)
    return d_q, d_k, d_v


def backward_raw(
    qkv_BTS3NE: Tensor, grad_BTSNE: Tensor, norms: Norms | None, rotation: Rotation | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of a whole projection, and of the norms' weights [E]."""
    d_qkv = qkv_BTS3NE.new_empty(qkv_BTS3NE.shape)
    tensors = [*qkv_BTS3NE.unbind(3), grad_BTSNE, *d_qkv.unbind(3)]
    sums = _launch(_backward, tensors, 5, norms, rotation)
    if sums is None:
        return d_qkv, None, None
    with torch.cuda.device_of(sums):
        (d_q_weight, d_k_weight), _ = added_up(sums[None], 2, qkv_BTS3NE.dtype)
    return d_qkv, d_q_weight[0], d_k_weight[0]


def _launch(
    kernel: Any,
    tensors: list[Tensor],
    strided: int,
    norms: Norms | None = None,
    rotation: Rotation | None = None,
) -> Tensor | None:
    """`strided` first tensors with strides of their own; those behind have the last one's. Returns
    what programs of a backward pass leave of the weights' gradients, [programs, 2, E] in fp32."""
    tensors = [t if _is_aligned(t) else t.contiguous() for t in tensors]
    batch, frames, places, heads, width = tensors[0].shape
    prepares = norms is not None or rotation is not None
    constants, options = sizes_of(frames, width, prepares)
    sequences = batch * places * heads
    programs = triton.cdiv(sequences, constants["GROUP"])
    strides = [tuple(s // 8 for s in tensor.stride()[:4]) for tensor in tensors[:strided]]
    numbers = (width**-0.5, frames, places, heads, sequences)
    unread = tensors[0]
    more = [*(norms or (unread, unread)), *(rotation or (unread, unread))]
    sums = None
    if kernel is _backward:
        if norms is not None:
            sums = torch.empty((programs, 2, width), dtype=torch.float32, device=unread.device)
        more.append(unread if sums is None else sums)
    flags = {"NORMS": norms is not None, "TURNS": rotation is not None}
    with torch.cuda.device_of(unread):  # Triton asks for the current GPU, not for the tensors'
        kernel[(programs,)](
            *tensors, *strides, *more, NORM_EPS, *numbers, **constants, **flags, **options
        )
    return sums


def sizes_of(
    frames: int, width: int, prepares: bool = False
) -> tuple[dict[str, int], dict[str, int]]:
    """Constants of a program, and the options that it is compiled with. One that also norms and
    turns its rows needs more registers: with fewer warps it would spill a kB a thread."""
    rows = max(16, triton.next_power_of_2(frames))  # a matrix product takes at least 16
    columns = max(16, triton.next_power_of_2(width))
    constants = {"GROUP": rows // frames, "ROWS": rows, "WIDTH": width, "COLUMNS": columns}
    warps = {16: 1, 32: 4, 64: 4, 128: 8}
    if prepares:
        warps = {16: 4, 32: 8, 64: 8, 128: 8}
    return constants, {"num_warps": warps[rows]}


def _is_aligned(tensor: Tensor) -> bool:
    *strides, last = tensor.stride()
    return last == 1 and all(stride % 8 == 0 for stride in strides)
