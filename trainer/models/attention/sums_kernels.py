# mypy: ignore-errors
"""The sum of what programs leave of sums over rows, in a fixed order; needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["groups", "chunks", "width"])
def _add_up(
    sums_ptr,
    each_ptr,
    all_ptr,
    groups,
    chunks,
    width,
    OWN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALSO: tl.constexpr,
):
    """Of parts [G, chunks, OWN + ALSO, D]: the first OWN over each group's chunks, [OWN, G, D]; the
    one behind them, if there is one, over all."""
    program = tl.program_id(0).to(tl.int64)
    group, part = program % groups, program // groups
    parts: tl.constexpr = OWN + ALSO
    first, last = group * chunks, (group + 1) * chunks
    if part == OWN:
        first, last = group * 0, chunks.to(tl.int64) * groups
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        at = (row * parts + part)[:, None] * width + column[None, :]
        mask = (row < last)[:, None] & inside[None, :]
        total += tl.sum(tl.load(sums_ptr + at, mask=mask, other=0.0), 0)
    if part == OWN:
        tl.store(all_ptr + column, total.to(all_ptr.dtype.element_ty), mask=inside)
    else:
        to = each_ptr + program * width + column
        tl.store(to, total.to(each_ptr.dtype.element_ty), mask=inside)


def added_up(
    sums: Tensor, own: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Of [G, chunks, K, D]: `own` first ones per group, each [G, D]; one behind over all, [D]."""
    groups, chunks, parts, width = sums.shape
    each = torch.empty((own, groups, width), dtype=dtype, device=sums.device)
    all_ = torch.empty(width, dtype=dtype, device=sums.device) if parts > own else None
    grid = (groups * own + (parts > own), triton.cdiv(width, 64))
    _add_up[grid](
        sums,
        each,
        each if all_ is None else all_,
        groups,
        chunks,
        width,
        OWN=own,
        ROWS=32,
        COLUMNS=64,
        ALSO=parts - own,
        num_warps=4,
    )
    return each.unbind(0), all_
