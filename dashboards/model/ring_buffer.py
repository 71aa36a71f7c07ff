"""History in bounded memory as immutable values: rows of floats, oldest dropped.

Rows lie packed in chunks, so that appending copies at most one chunk and a reducer may keep the
ring before and after. Half floats (11 bits) by default: 24 nodes x 8 GPUs x 5 metrics x 1 h are
7 MB; a chart of 200 columns cannot show more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

CHUNK = 60  # rows
NAN = math.nan
THIN_ROWS = 17 * CHUNK  # rows; more than twice the dots that 200 columns of braille have
LARGEST = {"e": 65504.0, "f": 3.0e38}  # what the format holds; more is shown as this

GPU_COLUMNS = ("power", "util", "memory", "temperature", "clock")
# A node's row: its own figures, the means over its GPUs (each row of the grid shows one of them),
# then GPU_COLUMNS for each GPU.
NODE_COLUMNS = ("cpu", "memory", "load", "network_mb_s", *("gpu_" + name for name in GPU_COLUMNS))
# A fleet's row: power in kW because watts of 1,000 nodes exceed a half float.
FLEET_COLUMNS = ("power_kw", "util", "gpu_memory", "temperature", "clock", *NODE_COLUMNS[:4])
# Recorded, so that rows with another layout are not taken for these.
LAYOUT = [list(FLEET_COLUMNS), list(NODE_COLUMNS), list(GPU_COLUMNS)]


@dataclass(frozen=True, slots=True)
class Ring:
    """The last `limit` rows (rounded up to a chunk) of `width` floats; NaN is unknown."""

    width: int
    limit: int = 3600
    code: str = "e"
    chunks: tuple[bytes, ...] = ()
    tail: bytes = b""

    def __len__(self) -> int:
        return CHUNK * len(self.chunks) + len(self.tail) // self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self.width * struct.calcsize("=" + self.code)

    def append(self, row: Sequence[float | None]) -> Ring:
        """With one row more; a wider row widens the ring, a narrower one is filled with NaN."""
        if len(row) > self.width:
            past = [(self.width, self.newest_bytes(None))]
            return Ring.from_bytes(past, self.limit, len(row), self.code).append(row)
        limit = LARGEST[self.code]
        values = [NAN if v is None or v != v else max(-limit, min(limit, v)) for v in row]
        values += [NAN] * (self.width - len(values))
        tail = self.tail + struct.pack(f"={self.width}{self.code}", *values)
        if len(tail) < CHUNK * self._row_bytes:
            return replace(self, tail=tail)
        keep = -(-self.limit // CHUNK)
        return replace(self, chunks=(*self.chunks, tail)[-keep:], tail=b"")

    def append_empty(self, count: int) -> Ring:
        """With so many rows of NaN more, at once: a gap may be longer than the ring."""
        if count <= 0:
            return self
        row = struct.pack(f"={self.width}{self.code}", *(NAN,) * self.width)
        data = self.tail + row * min(count, self.limit + CHUNK)
        size = CHUNK * self._row_bytes
        end = len(data) // size * size
        chunks = (*self.chunks, *(data[at : at + size] for at in range(0, end, size)))
        keep = -(-self.limit // CHUNK)
        return replace(self, chunks=chunks[-keep:], tail=data[end:])

    def rows(self, last: int | None = None) -> list[tuple[float, ...]]:
        """The newest `last` rows (all by default), oldest first."""
        return list(struct.iter_unpack(f"={self.width}{self.code}", self.newest_bytes(last)))

    def column(self, index: int, last: int | None = None) -> list[float]:
        """One value of the newest `last` rows, oldest first; empty when there is no such column."""
        if not 0 <= index < self.width:
            return []
        size = struct.calcsize("=" + self.code)
        form = f"={index * size}x{self.code}{(self.width - 1 - index) * size}x"
        return [value for (value,) in struct.iter_unpack(form, self.newest_bytes(last))]

    def newest_bytes(self, last: int | None) -> bytes:
        """The newest `last` rows packed, oldest first; for `from_bytes`."""
        if last is None:
            return b"".join((*self.chunks, self.tail))
        whole = max(0, -(-(last - len(self.tail) // self._row_bytes) // CHUNK))
        first = max(0, len(self.chunks) - whole)
        data = b"".join((*self.chunks[first:], self.tail))
        return data[max(0, len(data) - max(0, last) * self._row_bytes) :]

    @classmethod
    def from_bytes(
        cls, pieces: Sequence[tuple[int, bytes]], limit: int, width: int, code: str = "e"
    ) -> Ring:
        """Out of (width, packed rows), oldest first. Narrower rows are filled with NaN."""
        ring = cls(max([width, *(wide for wide, _ in pieces)]), limit, code)
        size = struct.calcsize("=" + code)
        data = bytearray()
        for wide, rows in pieces:
            if wide == ring.width:
                data += rows
                continue
            fill = struct.pack("=" + code, NAN) * (ring.width - wide)
            for at in range(0, len(rows), wide * size):
                data += rows[at : at + wide * size] + fill
        chunk = CHUNK * ring._row_bytes
        whole = len(data) // chunk * chunk
        chunks = tuple(bytes(data[at : at + chunk]) for at in range(0, whole, chunk))
        keep = -(-limit // CHUNK)
        return replace(ring, chunks=chunks[-keep:], tail=bytes(data[whole:]))


def gpu_column(index: int, metric: str) -> int:
    """The place of a GPU's metric in its node's row."""
    return len(NODE_COLUMNS) + index * len(GPU_COLUMNS) + GPU_COLUMNS.index(metric)


@dataclass(frozen=True, slots=True)
class Thin:
    """A whole curve: rows whose first value grows (the step), each for `stride` that were added.

    When it is full, pairs of rows are averaged.
    """

    width: int
    stride: int = 1
    kept: Ring | None = None
    pending: tuple[tuple[float, ...], ...] = field(default=())
    last_x: float = -1.0

    def add(self, *row: float) -> Thin:
        """With one row more. A smaller first value (a resumed run) drops the rows behind it."""
        thin = self
        if row[0] <= self.last_x:
            thin = self._rebuilt([old for old in self._kept_rows() if old[0] < row[0]], self.stride)
            pending = tuple(old for old in self.pending if old[0] < row[0])
            thin = replace(thin, pending=pending)
        pending = (*thin.pending, row)
        if len(pending) < thin.stride:
            return replace(thin, pending=pending, last_x=row[0])
        kept = (thin.kept or thin._empty()).append(_mean(pending))
        if len(kept) < THIN_ROWS:
            return replace(thin, kept=kept, pending=(), last_x=row[0])
        rows = kept.rows()
        pairs = [_mean(rows[i : i + 2]) for i in range(0, len(rows), 2)]
        return replace(thin._rebuilt(pairs, thin.stride * 2), last_x=row[0])

    def rows(self) -> list[tuple[float, ...]]:
        """Kept rows, and the mean of the pending ones."""
        rows = self._kept_rows()
        return [*rows, _mean(self.pending)] if self.pending else rows

    def value_before(self, x: float, column: int, default: float) -> float:
        """Of the newest row in front of `x`; `default` where there is none."""
        before = [row[column] for row in (*self._kept_rows(), *self.pending) if row[0] < x]
        return before[-1] if before else default

    def _kept_rows(self) -> list[tuple[float, ...]]:
        return self.kept.rows() if self.kept else []

    def _empty(self) -> Ring:
        # Full floats: a step number above 2,048 does not fit into 11 bits.
        return Ring(self.width, THIN_ROWS + CHUNK, "f")

    def _rebuilt(self, rows: list[tuple[float, ...]], stride: int) -> Thin:
        kept = self._empty()
        for row in rows:
            kept = kept.append(row)
        return Thin(self.width, stride, kept, (), rows[-1][0] if rows else -1.0)


def _mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Column means over what is known."""
    columns = [[value for value in column if value == value] for column in zip(*rows, strict=True)]
    return tuple(sum(known) / len(known) if known else NAN for known in columns)
