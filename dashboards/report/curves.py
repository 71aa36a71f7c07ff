"""Pictures as SVG text: losses, their difference with its error, times of steps. Pure.

Lines are dashed in different ways, and curves of several runs are named at their ends, so no colour
is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from clusterctl.compare.losses import Window
from clusterctl.compare.speed import Timing
from dashboards.model import units
from dashboards.report.svg import AXIS, LEFT, RIGHT, WIDTH, Point, begin, line, polyline, safe, text

TALL, BINS = 260, 120
END = 56  # columns right of a curve, for its name
BAR, GAP = 12, 14
NAMES = 220
KINDS = ("one", "other", "third", "fourth")  # classes of lines in the style sheet


def smoothed(places: Sequence[float], values: Sequence[float]) -> list[Point]:
    """Means over 120 equal parts of the range; values that are not finite are left out."""
    if not places:
        return []
    low, high = places[0], places[-1]
    scale = BINS / (high - low) if high > low else 0.0
    sums: dict[int, list[float]] = {}
    for at, value in zip(places, values, strict=True):
        if math.isfinite(value):
            part = sums.setdefault(min(BINS - 1, int((at - low) * scale)), [0.0, 0.0, 0.0])
            part[0], part[1], part[2] = part[0] + 1, part[1] + at, part[2] + value
    return [(at / count, value / count) for _, (count, at, value) in sorted(sums.items())]


def curves(named: Sequence[tuple[str, Sequence[Point]]], unit: str) -> str:
    """Up to four losses over steps or clips; "" without any, or with one of a single point."""
    if not named or any(len(points) < 2 for _, points in named):
        return ""
    frame = _Frame.around([points for _, points in named], END)
    parts = [begin(TALL, f"loss over {unit}"), *frame.axes(unit)]
    ends: list[float] = []
    for kind, (name, points) in zip(KINDS, named, strict=False):
        drawn = [frame.place(point) for point in points]
        parts.append(polyline(kind, drawn))
        x, y = drawn[-1]
        while (near := next((end for end in ends if abs(y - end) < 13), None)) is not None:
            y = near + 13
        ends.append(y)
        parts.append(text(x + 6, y + 4, name))
    return "\n".join([*parts, "</svg>"])


def attempts(rows: Iterable[Sequence[float]], first_steps: Iterable[int]) -> str:
    """Loss of every step in faint, smoothed in bright; lines where an attempt went on; "" if none.

    `rows` are (step, loss, smoothed loss) with growing steps, so no line goes back.
    """
    seen = [row for row in rows if math.isfinite(row[2])]
    if len(seen) < 2:
        return ""
    lines = {
        "each": [(row[0], row[1]) for row in seen if math.isfinite(row[1])],
        "smooth": [(row[0], row[2]) for row in seen],
    }
    frame = _Frame.around(lines.values())
    parts = [begin(TALL, "loss over steps"), *frame.axes("step")]
    for step in sorted(first_steps):
        if frame.left <= step <= frame.right:
            x, _ = frame.place((step, 0.0))
            about = f"an attempt went on with step {step:,}"
            parts.append(line("again", (x, 0), (x, TALL - AXIS), about))
    parts += [polyline(kind, map(frame.place, points)) for kind, points in lines.items()]
    return "\n".join([*parts, "</svg>"])


def differences(windows: Sequence[Window], unit: str) -> str:
    """B minus A in each window, with two standard errors to each side; "" without any."""
    if not windows:
        return ""
    spans = [(one.estimate.difference, 2 * (one.estimate.error or 0.0)) for one in windows]
    lows, highs = sorted(d - e for d, e in spans), sorted(d + e for d, e in spans)
    low = min(0.0, lows[int(0.02 * len(lows))])
    high = max(0.0, highs[int(0.98 * (len(highs) - 1))])
    frame = _Frame(windows[0].first, windows[-1].last, low, high, END)
    parts = [begin(TALL, f"difference of the losses over {unit}"), *frame.axes(unit)]
    parts.append(line("zero", frame.place((frame.left, 0.0)), frame.place((frame.right, 0.0))))
    for one, (value, error) in zip(windows, spans, strict=True):
        middle = (one.first + one.last) / 2
        about = f"{unit} {one.first:,.0f} to {one.last:,.0f}: {value:+.3g} ± {error:.2g}"
        bottom, top = (frame.place((middle, value + sign * error)) for sign in (-1, 1))
        parts.append(line("error", bottom, top, about))
        x, y = frame.place((middle, value))
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    return "\n".join([*parts, "</svg>"])


def bars(rows: Sequence[tuple[str, Timing]]) -> str:
    """Median seconds of both runs, a bar each; "" without any."""
    most = max((x for _, one in rows for x in (one.a, one.b) if x is not None), default=0.0)
    if not most:
        return ""
    tall = 2 * BAR + GAP
    parts = [begin(tall * len(rows), "median seconds of a step, by phase and bucket")]
    scale = (WIDTH - NAMES - 90) / most
    for row, (name, one) in enumerate(rows):
        parts.append(text(NAMES - 30, row * tall + BAR + 5, name, "end"))
        for place, (letter, value) in enumerate((("A", one.a), ("B", one.b))):
            y = row * tall + place * BAR
            parts.append(text(NAMES - 8, y + 10, letter, "end", "dim"))
            if value is not None:
                kind = "bar" if not place else "bar second"
                wide = max(1.0, value * scale)
                place_of = f'x="{NAMES}" y="{y}" width="{wide:.1f}" height="{BAR - 2}"'
                parts.append(f'<rect class="{kind}" {place_of}/>')
                parts.append(text(NAMES + wide + 6, y + 10, units.measured(value)))
    return "\n".join([*parts, "</svg>"])


class _Frame:
    """Places of values in a picture, cut to its lowest and highest value.

    `end` columns to the right are left free.
    """

    def __init__(self, left: float, right: float, low: float, high: float, end: int = 0) -> None:
        self.left, self.right = left, right if right > left else left + 1.0
        self._low, self._high = low, high if high > low else low + 1.0
        self._width = WIDTH - LEFT - RIGHT - end

    @classmethod
    def around(cls, lines: Iterable[Sequence[Point]], end: int = 0) -> _Frame:
        """Of all points, but without the highest 0.5 %."""
        points = list(itertools.chain.from_iterable(lines))
        xs, ys = [x for x, _ in points], sorted(y for _, y in points)
        return cls(min(xs), max(xs), ys[0], ys[min(len(ys) - 1, int(0.995 * len(ys)))], end)

    def place(self, point: Point) -> Point:
        x, y = point
        inside = min(self._high, max(self._low, y))
        share = (inside - self._low) / (self._high - self._low)
        return (
            LEFT + self._width * (x - self.left) / (self.right - self.left),
            6 + (TALL - AXIS - 12) * (1 - share),
        )

    def axes(self, unit: str) -> list[str]:
        parts = []
        for value in (self._low, (self._low + self._high) / 2, self._high):
            x, y = self.place((self.right, value))
            parts.append(line("grid", (LEFT, y), (x, y)))
            parts.append(text(LEFT - 8, y + 4, units.number(value), "end", "dim"))
        parts.append(text(LEFT, TALL - 6, f"{safe(unit)} {self.left:,.0f}", "start", "dim"))
        last = self.place((self.right, self._low))[0]
        return [*parts, text(last, TALL - 6, f"{self.right:,.0f}", "end", "dim")]
