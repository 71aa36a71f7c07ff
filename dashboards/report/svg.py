"""Pictures as SVG text: their parts, and the attempts of a run over time. Pure.

No colour is needed to read them: how an attempt ended is also written beside its bar, and the bars
of those that ended badly are hatched. All text of others is escaped here.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterable, Iterator

from checks.units import counted
from clusterctl.nodes import fold
from clusterctl.runs.attempts import DONE, RUNNING, Account, Attempt
from clusterctl.runs.journal import USER_STOP
from dashboards.model import units
from trainer.runlog.output import printable

WIDTH, LEFT, RIGHT = 1000, 64, 8
ROW, BAR, AXIS = 24, 14, 22
MOST_ROWS = 200  # attempts that are drawn, the newest ones
CHARACTER = 6.6  # width of a character of the labels

Point = tuple[float, float]


def timeline(known: Account, now_s: float) -> str:
    """A row for each attempt, a bar from its begin to its end; "" without attempts."""
    attempts = known.attempts[-MOST_ROWS:]
    if not attempts:
        return ""
    begin_s = attempts[0].began_s
    end_s = max(begin_s + 1.0, *(one.ended_s or now_s for one in attempts))
    height = ROW * len(attempts) + AXIS
    parts = [begin(height, "attempts of the run over time"), _HATCH]
    scale = (WIDTH - LEFT - RIGHT) / (end_s - begin_s)
    for at_s in _ticks(begin_s, end_s):
        x = LEFT + (at_s - begin_s) * scale
        parts.append(line("grid", (x, 0), (x, height - AXIS)))
        anchor = "end" if x > WIDTH - 60 else "middle" if x > LEFT + 40 else "start"
        parts.append(text(x, height - 6, _clock(at_s, end_s - begin_s), anchor, "dim"))
    for row, one in enumerate(attempts):
        parts += _bar(one, row * ROW, begin_s, scale, now_s)
    return "\n".join([*parts, "</svg>"])


def ending_of(attempt: Attempt) -> str:
    """How it ended, in words."""
    where = f" on {attempt.node}" if attempt.node else ""
    return f"{attempt.ending or 'goes on'}{where}"


def kind_of(attempt: Attempt) -> str:
    """Its class in the style sheet."""
    kinds = {RUNNING: "runs", DONE: "done", USER_STOP: "stopped"}
    return kinds.get(attempt.ending, "bad")


def _bar(one: Attempt, y: int, begin_s: float, scale: float, now_s: float) -> Iterator[str]:
    ended_s = one.ended_s or max(now_s, one.began_s)
    x = LEFT + max(0.0, one.began_s - begin_s) * scale
    width = max(2.0, min(WIDTH - RIGHT - x, (ended_s - one.began_s) * scale))
    label, kind = ending_of(one), kind_of(one)
    yield f'<g class="{kind}"><title>{safe(about(one, now_s))}</title>'
    yield text(LEFT - 8, y + BAR, f"{'! ' if kind == 'bad' else ''}{one.number}", "end")
    place = f'x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{BAR}"'
    yield f'<rect class="bar" {place}/>'
    if kind == "bad":
        yield f'<rect fill="url(#hatch)" {place}/>'
    wide = len(label) * CHARACTER
    if x + width + 6 + wide <= WIDTH:
        yield text(x + width + 6, y + BAR, label)
    elif x - 6 - wide >= LEFT:
        yield text(x - 6, y + BAR, label, "end")
    else:  # on the bar, which is then long
        yield text(x + 6, y + BAR, label, kind="on")
    yield "</g>"


def about(one: Attempt, now_s: float) -> str:
    """What is known of an attempt, in one sentence for hovering."""
    ended_s = one.ended_s or now_s
    steps = f"steps {one.first:,} to {one.last:,}" if one.first is not None else "no step"
    parts = [f"attempt {one.number}"]
    if one.nodes:
        parts.append(f"on {fold(one.nodes)}")
    if one.world:
        parts.append(counted(one.world, "rank"))
    parts += [f"from {one.checkpoint}"] if one.checkpoint else []
    parts += [steps, f"{_date(one.began_s)}, {units.duration(max(0.0, ended_s - one.began_s))}"]
    sentence = f": {one.text}" if one.text and one.text != one.ending else ""
    return f"{', '.join(parts)}; {ending_of(one)}{sentence}"


def line(kind: str, start: Point, end: Point, about: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    title = f"<title>{safe(about)}</title>" if about else ""
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {place}>{title}</line>'


def text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{safe(text)}</text>'


def safe(text: str) -> str:
    """Text of others for a page: printable and escaped."""
    return html.escape(printable(text))


def safe_lines(lines: Iterable[str]) -> str:
    """As `safe`, a line each."""
    return "\n".join(map(safe, lines))


def polyline(kind: str, points: Iterable[Point]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def begin(height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'


_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"/></pattern></defs>'
)


def _ticks(begin_s: float, end_s: float) -> Iterator[float]:
    """Round times, six at most."""
    least_s = (end_s - begin_s) / 6
    steps = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 7 * 86400)
    every_s = next((step for step in steps if step >= least_s), 28 * 86400)
    zone_s = time.localtime(begin_s).tm_gmtoff
    at_s = math.ceil((begin_s + zone_s) / every_s) * every_s - zone_s
    while at_s <= end_s:
        yield at_s
        at_s += every_s


def _clock(at_s: float, span_s: float) -> str:
    form = "%m-%d %H:%M" if span_s > 86400 else "%H:%M" if span_s > 600 else "%H:%M:%S"
    return time.strftime(form, time.localtime(at_s))


def _date(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
