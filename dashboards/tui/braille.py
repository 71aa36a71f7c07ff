"""Curves out of braille dots: numbers in, rows of (text, layer) out. Pure.

plotext 6.1 was measured for this, one curve on 70 x 15 cells, CPU at best on a busy box: 140 points
7.5 ms, 300 points 9.9, 2,000 points 34.5; here 1.2, 1.2 and 1.5, where a whole tick may cost 10.
Its versions 5 and 6 share no interface, and a gap where a value is unknown has to stay a gap.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Row = list[tuple[str, int]]  # runs of equal layer; layer -1 is blank
BLANK = -1

# Bits of a braille character: [column][row from the top].
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
# Character for a bar of 0 to 4 dots from the bottom in the left and the right column.
_BARS = [
    [chr(0x2800 + sum(_BITS[0][4 - left :]) + sum(_BITS[1][4 - right :])) for right in range(5)]
    for left in range(5)
]
_BARS[0][0] = " "
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Scale:
    """Values at the bottom and at the top."""

    low: float
    high: float

    def dots(self, value: float, rows: int) -> float:
        """Height of a value in dots above the bottom."""
        span = self.high - self.low
        part = (value - self.low) / span if span > 0 else 0.5
        return min(1.0, max(0.0, part)) * (4 * rows - 1)


def finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def nice_scale(values: Sequence[float], *, from_zero: bool = False) -> Scale:
    """A range that holds all known values, with round ends. A flat curve lies in the middle."""
    known = finite(values)
    if not known:
        return Scale(0.0, 1.0)
    low, high = (0.0 if from_zero else min(known)), max(known)
    if high <= low:
        pad = abs(high) * 0.1 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    part = (high - low) / 8
    if not 1e-300 < part < 1e300:
        return Scale(low, high)
    size = 10.0 ** math.floor(math.log10(part))
    step = next((m * size for m in (1.0, 2.0, 2.5, 5.0) if part <= m * size), 10.0 * size)
    # The hair keeps an end that is round already: 0.3 / 0.1 is 2.9999999999999996.
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def binned(values: Sequence[float], columns: int, per_bin: int, offset: int = 0) -> list[float]:
    """The newest `columns` means of `per_bin` values without unknown ones; NaN fills the left.

    `offset` values belong to the newest bin: bins keep their borders from tick to tick.
    """
    result: list[float] = []
    end = len(values)
    size = offset % per_bin or per_bin
    while end > 0 and len(result) < columns:
        known = finite(values[max(0, end - size) : end])
        result.append(sum(known) / len(known) if known else math.nan)
        end -= size
        size = per_bin
    result += [math.nan] * (columns - len(result))
    return result[::-1]


def area(values: Sequence[float], width: int, height: int, scale: Scale) -> list[Row]:
    """Bars of two dot columns a cell from the bottom; layer = row counted from the bottom.

    `values` has one a dot column (2 x width); NaN leaves a gap, a known value has a dot at least.
    """
    heights = _heights(values[: 2 * width], 4 * height - 1, scale)
    heights += [0] * (2 * width - len(heights))
    lowest, highest = min(filter(None, heights), default=0), max(heights, default=0)

    def text(row: int) -> str:
        low, high = 4 * row, 4 * row + 4
        return _bars([0 if h <= low else 4 if h >= high else h - low for h in heights])

    # Rows below the lowest bar are all the same, and so are those above the highest.
    full, blank = text(0) if lowest >= 4 else "", _BARS[0][0] * width
    rows: list[Row] = []
    for row in range(height - 1, -1, -1):
        same = blank if 4 * row >= highest else full if 4 * row + 4 <= lowest else None
        rows.append([(text(row) if same is None else same, row)])
    return rows


def _bars(dots: Sequence[int]) -> str:
    return "".join([_BARS[left][right] for left, right in zip(dots[::2], dots[1::2], strict=True)])


def _heights(values: Sequence[float], top: int, scale: Scale) -> list[int]:
    """Dots from 1 to top + 1, 0 for unknown. The one loop that every row of a grid runs through."""
    span = scale.high - scale.low
    factor = top / span if span > 0 else 0.0
    low, base = scale.low, 1.5 if span > 0 else 1.5 + top / 2
    return [
        0 if value != value else int(min(top + 1.0, max(1.0, (value - low) * factor + base)))
        for value in values
    ]


def curve(
    values: Sequence[float],
    width: int,
    height: int,
    scale: Scale,
    dots: Sequence[tuple[int, float]] = (),
) -> list[Row]:
    """A curve in layer 1 over single dots (dot column, y) in layer 0; it colours a shared cell.

    `values` has y for each dot column (2 x width), NaN where there is none.
    """
    bits = [[0] * width for _ in range(height)]
    layers = [[BLANK] * width for _ in range(height)]

    def put(x: int, y: int, layer: int) -> None:
        if layers[y >> 2][x >> 1] != layer:
            bits[y >> 2][x >> 1] = 0  # a thin line reads better than a fat one
        bits[y >> 2][x >> 1] |= _BITS[x & 1][y & 3]
        layers[y >> 2][x >> 1] = layer

    top = 4 * height - 1
    for x, value in dots:
        if math.isfinite(value) and 0 <= x < 2 * width:
            put(x, top - round(scale.dots(value, height)), 0)
    before: int | None = None
    for x, value in enumerate(values[: 2 * width]):
        if not math.isfinite(value):
            before = None
            continue
        y = top - round(scale.dots(value, height))
        first = last = y
        if before is not None and abs(before - y) > 1:
            # Up to the neighbour's height, in this column: a steep step stays one line.
            first, last = (before + 1, y) if before < y else (y, before - 1)
        for dot in range(first, last + 1):
            put(x, dot, 1)
        before = y
    return [_runs(zip(*row, strict=True)) for row in zip(bits, layers, strict=True)]


def _runs(cells: Iterable[tuple[int, int]]) -> Row:
    return [
        ("".join([chr(0x2800 + bit) if bit else " " for bit, _ in run]), layer)
        for layer, run in itertools.groupby(cells, operator.itemgetter(1))
    ]


def resampled(
    points: Sequence[tuple[float, float]], columns: int, low: float, high: float
) -> list[float]:
    """Mean y of the points of each of `columns` equal parts of low..high.

    Parts without a point between two that have one are interpolated: a short run gives a curve.
    """
    sums, counts = [0.0] * columns, [0] * columns
    span = (high - low) or 1.0
    for x, y in points:
        if math.isfinite(y):
            at = min(columns - 1, max(0, int((x - low) / span * columns)))
            sums[at] += y
            counts[at] += 1
    values = [s / n if n else math.nan for s, n in zip(sums, counts, strict=True)]
    known = [at for at, n in enumerate(counts) if n]
    for left, right in itertools.pairwise(known):
        for at in range(left + 1, right):
            part = (at - left) / (right - left)
            values[at] = values[left] + part * (values[right] - values[left])
    return values


def spark(values: Sequence[float], scale: Scale) -> str:
    """Two values a character, four heights; a blank where both are unknown.

    As `area` of one row; a grid calls it for every row, so it compares instead of computing.
    """
    sixth = (scale.high - scale.low) / 6
    if sixth > 0:
        two, three, four = (scale.low + part * sixth for part in (1, 3, 5))
    else:
        two, three, four = -math.inf, -math.inf, math.inf
    # NaN fails every comparison.
    dots = [
        4 if v >= four else 3 if v >= three else 2 if v >= two else 1 if v == v else 0
        for v in values
    ]
    if len(dots) % 2:
        dots.append(0)
    return _bars(dots)


def bar(part: float | None, width: int) -> tuple[str, str]:
    """(filled, empty) text of a horizontal bar, heavy and light: it reads without colour."""
    if part is None or not math.isfinite(part):
        return "", "·" * width
    halves = round(min(1.0, max(0.0, part)) * width * 2)
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return filled, "─" * (width - len(filled))
