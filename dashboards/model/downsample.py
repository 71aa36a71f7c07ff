"""A whole run's curve in bounded memory: when it is full, neighbours are averaged pairwise."""

from __future__ import annotations

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
        thin = self if row[0] > self.last_x else self._before(row[0])
        pending = (*thin.pending, row)
        if len(pending) < thin.stride:
            return replace(thin, pending=pending, last_x=row[0])
        kept = (thin.kept or thin._empty()).append(_mean(pending))
        thin = replace(thin, kept=kept, pending=(), last_x=row[0])
        return thin._halved() if len(kept) >= LIMIT else thin

    def rows(self) -> list[tuple[float, ...]]:
        """Kept rows, and the mean of those still waiting for company."""
        rows = self.kept.rows() if self.kept else []
        return [*rows, _mean(self.pending)] if self.pending else rows

    def _empty(self) -> Ring:
        # Full floats: a step number above 2,048 does not fit into 11 bits.
        return Ring(self.width, LIMIT + CHUNK, "f")

    def _rebuilt(self, rows: list[tuple[float, ...]], stride: int) -> Thin:
        kept = self._empty()
        for row in rows:
            kept = kept.append(row)
        return Thin(self.width, stride, kept, (), rows[-1][0] if rows else -1.0)

    def _halved(self) -> Thin:
        rows = self.kept.rows() if self.kept else []
        pairs = [_mean(rows[i : i + 2]) for i in range(0, len(rows), 2)]
        return replace(self._rebuilt(pairs, self.stride * 2), last_x=self.last_x)

    def _before(self, x: float) -> Thin:
        kept = [row for row in (self.kept.rows() if self.kept else []) if row[0] < x]
        return self._rebuilt(kept, self.stride)


def _mean(rows: tuple[tuple[float, ...], ...] | list[tuple[float, ...]]) -> tuple[float, ...]:
    """Column means over what is known."""
    return tuple(_known_mean(column) for column in zip(*rows, strict=True))


def _known_mean(values: tuple[float, ...]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN
