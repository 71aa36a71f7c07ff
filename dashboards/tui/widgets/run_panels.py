"""The panels of the run screen: how far, the curves, where a step goes, figures, events, nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from dashboards.model import units
from dashboards.model.fleet import node_mark
from dashboards.model.run_progress import figures, is_bad, one_line
from dashboards.model.state import RunState, State
from dashboards.tui import braille
from dashboards.tui.braille import BLANK, Scale, finite, nice_scale, resampled
from dashboards.tui.widgets.bars import last_step_age, progress_bar, status_words
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, spread, words


class RunHead(Panel):
    """Name, state, progress, time of arrival, age of the data."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        if run is None:
            text = " no run is watched: clusterctl top --run outputs/NNN-MODEL"
            return [words((text, colors.dim))]
        now = figures(run, state.now_s)
        left = words((f" {run.name}  ", colors.strong), *status_words(now, colors))
        if run.last is None:
            return [left]
        if width >= 100:
            left += words((f"  epoch {run.last.epoch}", colors.label))
        left += words((f"  {now.step:,}/{now.steps_total:,}", colors.text))
        style = colors.alarm if now.status == "stalled" else colors.label
        right = words((f"{last_step_age(run, state)} ago ", style))
        if now.eta_s is not None:
            arrival = time.strftime("%a %H:%M", time.localtime(state.now_s + now.eta_s))
            eta = words(("ETA ", colors.dim), (units.span(now.eta_s), colors.strong))
            right = eta + words((f" ({arrival})  " if width >= 90 else "  ", colors.label)) + right
        if height < 2:
            percent = "" if now.part is None else f"  {100 * now.part:.0f}%"
            left += words((percent, colors.good))
        bar = [Segment(" ", colors.text), *progress_bar(now, width - 2, colors)]
        return [spread(left, right, width, colors.text), bar][:height]


class CurvePanel(Panel):
    """A figure of every step over the whole run."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.curve if state.run else None,)


class LossCurve(CurvePanel):
    """Loss of every step in faint, smoothed in bright."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        rows = run.curve.rows() if run else []
        if run is None or run.last is None or not rows:
            self.title("loss")
            return [words((" the curve begins with the first step", colors.dim))]
        smooth = units.number(figures(run, state.now_s).smooth_loss)
        self.title(f"loss {smooth}", f"this step {units.number(run.last.loss)}")
        raw = [(row[0], row[1]) for row in rows]
        points = [(row[0], row[2]) for row in rows]
        return curve(run, points, width, height, colors, colors.good, dots=raw)


class StepCurve(CurvePanel):
    """Seconds a step."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        rows = run.curve.rows() if run else []
        if run is None or not rows:
            self.title("step time")
            return []
        now = figures(run, state.now_s)
        self.title(f"step {units.seconds(now.step_s)}", f"p99 {units.seconds(now.p99_s)}")
        points = [(row[0], row[3]) for row in rows]
        return curve(run, points, width, height, colors, colors.accent, from_zero=True)


def curve(
    run: RunState,
    points: Sequence[tuple[float, float]],
    width: int,
    height: int,
    colors: Palette,
    style: Style,
    *,
    dots: Sequence[tuple[float, float]] = (),
    from_zero: bool = False,
) -> list[Line]:
    """A curve over steps, `dots` faint behind it, a scale at the left and step numbers below."""
    known = finite([y for _, y in [*points, *dots]])
    scale = nice_scale(_without_outliers(known), from_zero=from_zero)
    marks = _labels(scale, height - 1)
    gutter = max(len(text) for text in marks.values()) + 1
    inner, tall = width - gutter - 1, height - 1
    if inner < 4 or tall < 1:
        return []
    low, high = points[0][0] - (run.curve.stride - 1) / 2, float(run.last.step if run.last else 1)
    per_step = 2 * inner / ((high - low) or 1.0)
    main = resampled(points, 2 * inner, low, high)
    placed = [(min(2 * inner - 1, int((x - low) * per_step)), y) for x, y in dots]
    styles = {BLANK: colors.dim, 0: colors.faint, 1: style}
    result: list[Line] = []
    for y, row in enumerate(braille.curve(main, inner, tall, scale, placed)):
        line = words((f"{marks.get(y, ''):>{gutter - 1}} ", colors.dim))
        result.append(line + [Segment(text, styles[layer]) for text, layer in row])
    axis = " " * gutter + _step_axis(low, high, inner)
    return [*result, words((axis, colors.dim))]


def _without_outliers(values: list[float]) -> list[float]:
    """The first steps and a pause may be far above: the scale follows the other 98 %."""
    if len(values) < 100:
        return values
    ordered = sorted(values)
    limit = ordered[int(0.98 * len(ordered))]
    middle = ordered[len(ordered) // 2]
    return [value for value in values if value <= max(limit, 3 * middle)]


def _labels(scale: Scale, rows: int) -> dict[int, str]:
    """Values at top, middle and bottom."""
    labels = {0: units.number(scale.high), rows - 1: units.number(scale.low)}
    if rows >= 7:
        middle = rows // 2
        value = scale.high - (scale.high - scale.low) * middle / (rows - 1)
        labels[middle] = units.number(value)
    return labels


def _step_axis(low: float, high: float, inner: int) -> str:
    left, right = f"{low:,.0f}", f"{high:,.0f}"
    middle = f"{(low + high) / 2:,.0f}" if inner > 40 else "step"
    gap = inner - len(left) - len(right) - len(middle)
    if gap < 2:
        return right.rjust(inner)
    return left + " " * (gap // 2) + middle + " " * (gap - gap // 2) + right


class Events(Panel):
    """What happened, newest first."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.events if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        events = run.events if run else ()
        self.title("events", str(len(events)) * (len(events) > height))
        if not events:
            return [words((" nothing yet", colors.dim))]
        result = []
        with_steps = any(sample.event.step is not None for sample in events)
        for sample in events[-1 : -height - 1 : -1]:
            event, bad = sample.event, is_bad(sample.event)
            at = clock(event.time_s) if event.time_s else "-"
            step = "" if event.step is None else f"{event.step:,}"
            line = words(
                (f" {at} ", colors.dim),
                ("! " if bad else "  ", colors.bad),
                (f"{event.name:<11}", colors.bad if bad else colors.label),
                (f"{step:>6} " if with_steps else "", colors.dim),
                (" " + one_line(event), colors.text),
            )
            result.append(line)
        return result


class RunNodes(Panel):
    """The nodes of the run: the launcher's state of each, and the fleet's."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        names = list(run.planned if run and run.planned else state.nodes)
        self.title(f"{len(names)} nodes" if names else "nodes")
        lines: list[Line] = []
        quiet = 0
        for name in names:
            node = state.nodes.get(name)
            status = run.node_states.get(name, "") if run else ""
            mark, why = node_mark(node, state) if node else ("", "")
            if not mark and status in ("", "running", "ended") and len(names) > height:
                quiet += 1
                continue
            if status in ("lost", "failed"):
                mark, why = "!", status
            style = colors.warn if mark in ("~", "-") else colors.bad if mark else colors.good
            word = f"{mark} {why}" if mark else status or "ok"
            if not status and (node is None or not state.watches):
                style = colors.dim
                word = word if mark else "not watched"
            between = f" {status} " if mark and status not in ("", why) else " "
            lines.append(words((f" {name} ", colors.text), (between, colors.label), (word, style)))
        if quiet:
            lines = lines[: max(0, height - 1)]
            lines.append(words((f" {quiet} others ", colors.label), ("ok", colors.good)))
        return lines
