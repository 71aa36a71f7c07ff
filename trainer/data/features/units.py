"""What a feature cache holds: each clip at each size training may want, in pieces of whole chunks.

A video VAE encodes chunks of 17 frames that do not see each other, so a clip that is cut at
multiples of 17 is encoded once and serves every window that starts there. The shorter last chunk of
other lengths (33 = 17 + 16) is encoded for every such start too, as a separate stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets, bits

_NAME = 7  # separates these random bits from others, see `bits`
_EDGE_BITS, _LENGTH_BITS = 20, 20

Keys = NDArray[np.uint64]


def is_count(value: Any) -> bool:
    """Whether a value read from JSON is a whole number from 1 that arrays can hold."""
    return type(value) is int and 0 < value < 1 << 31


@dataclass(frozen=True)
class Grid:
    """How a VAE divides a clip."""

    chunk: int | None  # frames that are encoded together and see no others; None: a whole window
    time: int  # frames of a latent frame, rounded up in each chunk
    edge: int  # pixels of a latent pixel
    channels: int

    def step(self, length: int) -> int:
        """Frames from one chunk of this length to the next."""
        return self.chunk or length

    def pieces(self, frames: int) -> tuple[int, int]:
        """(whole chunks, frames of the last shorter one) of a window."""
        return divmod(frames, self.chunk) if self.chunk else (0, frames)

    def lengths(self, frames: int) -> tuple[int, ...]:
        """Lengths of the chunks that a window is made of."""
        whole, rest = self.pieces(frames)
        return (*((self.chunk or 0,) if whole else ()), *((rest,) if rest else ()))

    def latents(self, length: int) -> int:
        """Latent frames of one chunk."""
        return -(-length // self.time)

    def latent_size(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """(T, H, W) of a window's latent, as the VAE itself says it."""
        whole, rest = self.pieces(size[0])
        frames = whole * self.latents(self.chunk or 0) + self.latents(rest)
        return frames, size[1] // self.edge, size[2] // self.edge

    def count(self, length: int, frames: int) -> int:
        """Chunks of this length in a clip of `frames` frames."""
        return (frames - length) // self.step(length) + 1 if frames >= length else 0

    def window(self, start: int, interval: int, window: int, frames: int) -> int:
        """The chunk where a window begins that training without a cache begins at frame `start`:
        the grid's last place before it, counted around in clips that have only `frames` frames."""
        step = self.step(window)
        places = (frames - window) // step + 1
        return start // (interval * step) % max(1, places)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Grid:
        """Raises KeyError, TypeError and ValueError for a document that says none."""
        grid = cls(**{name: document[name] for name in ("chunk", "time", "edge", "channels")})
        numbers = (grid.time, grid.edge, grid.channels, 1 if grid.chunk is None else grid.chunk)
        if not all(map(is_count, numbers)):
            raise ValueError(f"{grid} is not of whole numbers from 1")
        return grid


def keys_of(ids: Keys, height: Any, width: Any, length: Any) -> Keys:
    """One name for a clip (its content id), its size in pixels and the frames of its chunks."""
    words = np.broadcast_arrays(
        *(np.asarray(word, np.int64) for word in (height, width, length)), np.asarray(ids)
    )
    code = (words[0] << (_EDGE_BITS + _LENGTH_BITS)) | (words[1] << _LENGTH_BITS) | words[2]
    return np.asarray(ids, np.uint64) ^ bits(code, _NAME)


@dataclass(frozen=True)
class Units:
    """Clips to encode, [N] each, in order of rows: what one decoding of a clip at a size gives."""

    rows: NDArray[np.int64]
    height: NDArray[np.int32]  # pixels
    width: NDArray[np.int32]
    streams: NDArray[np.uint64]  # bit i: chunks of `lengths[i]` frames are wanted
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def wanted(self, unit: int) -> list[int]:
        """Lengths of a unit's chunks."""
        mask = int(self.streams[unit])
        return [length for bit, length in enumerate(self.lengths) if mask >> bit & 1]

    def each_stream(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """(bit, length, units that want it)."""
        for bit, length in enumerate(self.lengths):
            yield bit, length, np.flatnonzero(self.streams >> np.uint64(bit) & np.uint64(1))


def find_units(manifest: Manifest, buckets: Buckets, interval: int, grid: Grid) -> Units:
    """All that training with these buckets may want of these clips, in any epoch."""
    rows, cells = buckets.reachable(manifest, interval)
    lengths = sorted({n for cell in buckets.cells for n in grid.lengths(cell.frames)})
    place = {length: bit for bit, length in enumerate(lengths)}
    masks = np.array(
        [sum(1 << place[n] for n in grid.lengths(cell.frames)) for cell in buckets.cells], np.uint64
    )
    sizes = sorted({(cell.height, cell.width) for cell in buckets.cells})
    number = {size: index for index, size in enumerate(sizes)}
    size_of = np.array([number[cell.height, cell.width] for cell in buckets.cells], np.int64)
    names, inverse = np.unique(rows * len(sizes) + size_of[cells], return_inverse=True)
    streams = np.zeros(len(names), np.uint64)
    np.bitwise_or.at(streams, inverse, masks[cells])
    table = np.array(sizes, np.int32).reshape(-1, 2)[names % len(sizes)]
    return Units(names // len(sizes), table[:, 0], table[:, 1], streams, tuple(lengths))


def frames_of(num_frames: NDArray[np.int32], interval: int, most: int | None) -> NDArray[np.int64]:
    """Frames of each clip that are encoded: every `interval`-th, `most` at most."""
    frames = -(-num_frames.astype(np.int64) // interval)
    return frames if most is None else np.minimum(frames, most)


def unit_bytes(units: Units, frames: NDArray[np.int64], grid: Grid, each: int) -> NDArray[np.int64]:
    """Bytes that each unit's latents take, where a value takes `each`; `frames` are by row."""
    area = (units.height.astype(np.int64) // grid.edge) * (units.width // grid.edge)
    total = np.zeros(len(units), np.int64)
    for _, length, places in units.each_stream():
        own = frames[units.rows[places]]
        counts = np.where(own >= length, (own - length) // grid.step(length) + 1, 0)
        total[places] += counts * each * grid.latents(length) * grid.channels * area[places]
    return total


def cut(sizes: NDArray[np.int64], limit: int) -> list[tuple[int, int]]:
    """Neighbours put together up to `limit` bytes, at least one each: (first, behind the last)."""
    spans, start, held = [], 0, 0
    for place, size in enumerate(sizes.tolist()):
        if place > start and held + size > limit:
            spans.append((start, place))
            start, held = place, 0
        held += size
    return [*spans, (start, len(sizes))] if len(sizes) else []


def segments(
    grid: Grid, lengths: list[int], frames: int, frame_bytes: int, limit: int
) -> Iterator[tuple[list[int], int, int]]:
    """(lengths, first frame, behind the last): a clip in decodings of about `limit` bytes."""
    by_step: dict[int, list[int]] = {}
    for length in lengths:
        by_step.setdefault(grid.step(length), []).append(length)
    for step, own in by_step.items():
        each = step * max(1, math.floor(limit / (step * frame_bytes)))
        last = max(((grid.count(n, frames) - 1) * step + n for n in own), default=0)
        for start in range(0, last, each):
            yield own, start, min(start + each, last)
