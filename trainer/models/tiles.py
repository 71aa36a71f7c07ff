"""A network over more images than fit at once, and over images larger than fit at all.

How much fits is decided by bytes, not by a count: `Room` starts from the device's size, so that a
machine cuts the same way in every run, and halves whenever an allocation fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.errors import OutOfMemory
from trainer.memory import GIB, is_out_of_memory

# N images · C channels · H,W height, width
Network = Callable[[Tensor], Tensor]

DEVICE_SHARE = 8  # of an accelerator's memory: the model that is trained needs most of it
HOST_SHARE = 32  # of a machine's: its ranks share it, and a CPU is no faster with more at once


@dataclass
class Room:
    """Bytes that one call of a network may take; falls when that proves too much."""

    limit_bytes: int | None = None  # None: a share of the device's memory

    def bytes(self, device: torch.device) -> int:
        if self.limit_bytes is None:
            self.limit_bytes = _share(device)
        return self.limit_bytes

    def halve(self, device: torch.device) -> None:
        self.limit_bytes = self.bytes(device) // 2

    def fits(self, each_bytes: int, device: torch.device) -> int:
        """How many at once, at least one."""
        return max(1, self.bytes(device) // max(1, each_bytes))


def _share(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024 // HOST_SHARE
    return GIB


def in_batches(network: Network, x: Tensor, each_bytes: int, room: Room) -> Tensor:
    """network(x) for as many rows of x at a time as fit, joined; `each_bytes` is one row's peak.

    Raises OutOfMemory when one row alone does not fit.
    """
    out: Tensor | None = None
    start = 0
    while start < len(x):
        count = min(len(x) - start, room.fits(each_bytes, x.device))
        piece = _attempt(network, x[start : start + count])
        if piece is None:
            if count == 1:
                raise OutOfMemory(
                    f"a {' x '.join(map(str, x.shape[2:]))} input of the VAE does not fit into the "
                    f"memory of {x.device}",
                    hint="smaller videos, or a smaller vae.memory_gb, which cuts frames into tiles",
                )
            room.limit_bytes = count * each_bytes // 2
            continue
        if out is None:  # in place: joining at the end would hold everything twice
            out = piece if count == len(x) else piece.new_empty(len(x), *piece.shape[1:])
        if out is not piece:
            out[start : start + count] = piece
        start += count
    assert out is not None, "no rows"
    return out


def _attempt(network: Network, x: Tensor) -> Tensor | None:
    """The result, or None when there was too little memory (freed when this returns)."""
    try:
        return network(x)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if x.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


@dataclass(frozen=True, slots=True)
class Tiling:
    """Squares that cover an image; sizes in cells, the pixels that become one latent pixel."""

    tile: int
    overlap: int

    def starts(self, cells: int) -> list[int]:
        """Where tiles begin along an edge, evenly spread; neighbours share at least `overlap`."""
        if cells <= self.tile:
            return [0]
        count = math.ceil((cells - self.overlap) / (self.tile - self.overlap))
        return [round(i * (cells - self.tile) / (count - 1)) for i in range(count)]


def tiled(network: Network, x_NCHW: Tensor, tiling: Tiling, from_cell: int, to_cell: int) -> Tensor:
    """network(x) put together from tiles, blended over their overlaps.

    `from_cell` and `to_cell` are the pixels of a cell on either side: 8 and 1 for encoding. Of an
    overlap the outer quarters are not used: near a tile's edge the network saw its zero padding. What
    a network takes from the whole image (group norms, attention) it takes from the tile, so results
    differ a little everywhere.
    """
    rows, columns = (size // from_cell for size in x_NCHW.shape[2:])
    tops, lefts = tiling.starts(rows), tiling.starts(columns)
    out: Tensor | None = None
    for i, top in enumerate(tops):
        for j, left in enumerate(lefts):
            high, wide = min(tiling.tile, rows), min(tiling.tile, columns)
            piece = network(_cut(x_NCHW, top, left, high, wide, from_cell))
            dtype = piece.dtype
            if out is None:
                size = (rows * to_cell, columns * to_cell)
                out = piece.new_zeros(*piece.shape[:2], *size, dtype=torch.float32)
            down_H = _weights(tops, i, high, to_cell).to(piece.device)
            across_W = _weights(lefts, j, wide, to_cell).to(piece.device)
            # fp32: sums of weighted pieces
            weighted = piece.float() * down_H[:, None] * across_W
            _cut(out, top, left, high, wide, to_cell).add_(weighted)
    assert out is not None, "no tiles"
    return out.to(dtype)


def _cut(x: Tensor, top: int, left: int, high: int, wide: int, cell: int) -> Tensor:
    """A view of the pixels of some cells."""
    return x[..., top * cell : (top + high) * cell, left * cell : (left + wide) * cell]


def _weights(starts: list[int], index: int, length: int, to_cell: int) -> Tensor:
    """How much of a tile counts along one axis; neighbours' weights add up to 1."""
    place = (torch.arange(length * to_cell) + 0.5) / to_cell + starts[index]
    weights = torch.ones(length * to_cell)
    if index > 0:
        weights *= _ramp(place, starts[index], starts[index - 1] + length)
    if index + 1 < len(starts):
        weights *= 1 - _ramp(place, starts[index + 1], starts[index] + length)
    return weights


def _ramp(place: Tensor, begin: int, end: int) -> Tensor:
    """0 over an overlap's first quarter, 1 over its last, linear between."""
    return (2 * (place - begin) / (end - begin) - 0.5).clamp(0, 1)
