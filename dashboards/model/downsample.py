"""The curve of a whole run in bounded memory: when it is full, pairs of rows are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dashboards.model.ring_buffer import CHUNK, NAN, Ring

LIMIT = 17 * CHUNK  # rows; more than twice the dots that 200 columns of braille have


@dataclass(frozen=True, slots=True)
class Thin:
    """Rows whose first value grows (the step); each stands for `stride` values that were added."""

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
        pending = (*thin.pending, row)
        if len(pending) < thin.stride:
            return replace(thin, pending=pending, last_x=row[0])
        kept = (thin.kept or thin._empty()).append(_mean(pending))
        if len(kept) < LIMIT:
            return replace(thin, kept=kept, pending=(), last_x=row[0])
        rows = kept.rows()
        pairs = [_mean(rows[i : i + 2]) for i in range(0, len(rows), 2)]
        return replace(thin._rebuilt(pairs, thin.stride * 2), last_x=row[0])

    def rows(self) -> list[tuple[float, ...]]:
        """Kept rows, and the mean of the pending ones."""
        rows = self._kept_rows()
        return [*rows, _mean(self.pending)] if self.pending else rows

    def _kept_rows(self) -> list[tuple[float, ...]]:
        return self.kept.rows() if self.kept else []

    def _empty(self) -> Ring:
        # Full floats: a step number above 2,048 does not fit into 11 bits.
        return Ring(self.width, LIMIT + CHUNK, "f")

    def _rebuilt(self, rows: list[tuple[float, ...]], stride: int) -> Thin:
        kept = self._empty()
        for row in rows:
            kept = kept.append(row)
        return Thin(self.width, stride, kept, (), rows[-1][0] if rows else -1.0)


def _mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Column means over what is known."""
    columns = [[value for value in column if value == value] for column in zip(*rows, strict=True)]
    return tuple(sum(known) / len(known) if known else NAN for known in columns)
