"""The panels of the run screen: how far, the curves, where a step goes, figures, events, nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from dashboards.model import units
from dashboards.model.fleet import node_mark
from dashboards.model.run_progress import Figures, figures, is_bad, one_line
from dashboards.model.state import State
from dashboards.tui import braille as plot
from dashboards.tui.braille import BLANK, Scale, finite, nice_scale, resampled
from dashboards.tui.widgets.bars import progress_bar, status_words
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, spread, words


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
        age_s = None if run.last_s is None else state.now_s - run.last_s
        right = words((f"{units.age(age_s)} ago ", self._age_style(now, colors)))
        if now.eta_s is not None:
            arrival = time.strftime("%a %H:%M", time.localtime(state.now_s + now.eta_s))
            eta = words(("ETA ", colors.dim), (units.span(now.eta_s), colors.strong))
            eta += words((f" ({arrival})  " if width >= 90 else "  ", colors.label))
            right = eta + right
        if height < 2:
            percent = "" if now.part is None else f"  {100 * now.part:.0f}%"
            left += words((percent, colors.good))
            return [spread(left, right, width, colors.text)]
        bar_line = [Segment(" ", colors.text), *progress_bar(now, width - 2, colors)]
        return [spread(left, right, width, colors.text), bar_line]

    def _age_style(self, now: Figures, colors: Palette) -> Style:
        return colors.alarm if now.status == "stalled" else colors.label


class LossCurve(Panel):
    """Loss of every step in faint, smoothed in bright, over the whole run."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.curve if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        rows = run.curve.rows() if run else []
        if run is None or run.last is None or not rows:
            self.title("loss", "")
            return [words((" the curve begins with the first step", colors.dim))]
        now = figures(run, state.now_s)
        self.title(
            f"loss {units.number(now.smooth_loss)}", f"this step {units.number(run.last.loss)}"
        )
        raw = [(row[0], row[1]) for row in rows]
        smooth = [(row[0], row[2]) for row in rows]
        ends = (rows[0][0] - (run.curve.stride - 1) / 2, float(run.last.step))
        return curve(smooth, ends, width, height, colors, colors.good, dots=raw)


class StepCurve(Panel):
    """Seconds a step over the whole run."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.curve if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        rows = run.curve.rows() if run else []
        if run is None or not rows:
            self.title("step time", "")
            return []
        now = figures(run, state.now_s)
        self.title(f"step {units.seconds(now.step_s)}", f"p99 {units.seconds(now.p99_s)}")
        points = [(row[0], row[3]) for row in rows]
        ends = (rows[0][0] - (run.curve.stride - 1) / 2, float(run.last.step if run.last else 1))
        return curve(points, ends, width, height, colors, colors.accent, from_zero=True)


def curve(
    points: list[tuple[float, float]],
    ends: tuple[float, float],
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
    low, high = ends
    per_step = 2 * inner / ((high - low) or 1.0)
    drawn = plot.lines(
        [plot.Line(resampled(points, 2 * inner, low, high), 1)],
        inner,
        tall,
        scale,
        dots=[(min(2 * inner - 1, int((x - low) * per_step)), y) for x, y in dots],
    )
    styles = {BLANK: colors.dim, 0: colors.faint, 1: style}
    result: list[Line] = []
    for y, row in enumerate(drawn):
        line = words((f"{marks.get(y, ''):>{gutter - 1}} ", colors.dim))
        result.append(line + [Segment(text, styles[layer]) for text, layer in row])
    result.append(_step_axis(low, high, gutter, inner, colors))
    return result


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
        labels[rows // 2] = units.number(
            scale.high - (scale.high - scale.low) * (rows // 2) / (rows - 1)
        )
    return labels


def _step_axis(low: float, high: float, gutter: int, inner: int, colors: Palette) -> Line:
    left, right = f"{low:,.0f}", f"{high:,.0f}"
    middle = f"{(low + high) / 2:,.0f}" if inner > 40 else "step"
    gap = inner - len(left) - len(right) - len(middle)
    if gap < 2:
        return words((" " * gutter + right.rjust(inner), colors.dim))
    before = gap // 2
    return words(
        (" " * gutter + left + " " * before + middle + " " * (gap - before) + right, colors.dim)
    )


class Events(Panel):
    """What happened, newest first."""

    def looks_at(self, state: State) -> tuple[object, ...]:
        return (state.run.events if state.run else None,)

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        events = run.events if run else ()
        self.title("events", f"{len(events)}" if len(events) > height else "")
        if not events:
            return [words((" nothing yet", colors.dim))]
        result = []
        with_steps = any(sample.event.step is not None for sample in events)
        for sample in events[-1 : -height - 1 : -1]:
            event = sample.event
            at = time.strftime("%H:%M:%S", time.localtime(event.time_s)) if event.time_s else "-"
            bad = is_bad(event)
            line = words(
                (f" {at} ", colors.dim),
                ("! " if bad else "  ", colors.bad),
                (f"{event.name:<11}", colors.bad if bad else colors.label),
            )
            if with_steps:
                line += words(
                    (f"{'' if event.step is None else f'{event.step:,}':>6} ", colors.dim)
                )
            result.append(line + words((" " + one_line(event), colors.text)))
        return result


class RunNodes(Panel):
    """The nodes of the run: the launcher's word about each, and the fleet's."""

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        names = list(run.planned if run and run.planned else state.nodes)
        self.title(f"{len(names)} nodes" if names else "nodes", "")
        lines: list[Line] = []
        quiet = []
        for name in names:
            node = state.nodes.get(name)
            status = run.node_states.get(name, "") if run else ""
            never = node is None or not state.watches  # its silence says nothing
            mark, why = ("", "") if node is None else node_mark(node, state)
            if not mark and status in ("", "running", "ended") and len(names) > height:
                quiet.append(name)
                continue
            if status in ("lost", "failed"):
                mark, why = "!", status
            style = colors.warn if mark in ("~", "-") else colors.bad if mark else colors.good
            word = f"{mark} {why}" if mark else status or ("not watched" if never else "ok")
            lines.append(
                words(
                    (f" {name} ", colors.text),
                    (f" {status} " if mark and status not in ("", why) else " ", colors.label),
                    (word, colors.dim if never and not status else style),
                )
            )
        if quiet:
            lines = lines[: max(0, height - 1)]
            lines.append(words((f" {len(quiet)} others ", colors.label), ("ok", colors.good)))
        return lines
