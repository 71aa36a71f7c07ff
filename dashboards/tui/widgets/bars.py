"""The lines at the top and at the bottom of every screen, the run and a replay in one line."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rich.style import Style
from textual.events import Click

from checks.units import counted
from dashboards.feeds.replay import Player
from dashboards.model import units
from dashboards.model.alert_book import Alert
from dashboards.model.ring_buffer import Thin
from dashboards.model.run_progress import Figures, figures
from dashboards.model.state import RunState, State
from dashboards.model.table import ALARM, MISSING, STALE, UNKNOWN, Summary, summarise
from dashboards.tui.braille import nice_scale, resampled, spark
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, crop, gauge, spread, width_of, words

UNDERLINED = Style(underline=True)
Key = tuple[str, str, str]  # (key, word, action), for the bar below


def is_muted(alert: Alert, state: State) -> bool:
    return alert.muted_until_s is not None and alert.muted_until_s > state.now_s


def unheard(state: State) -> list[Alert]:
    """Active alerts that are neither acknowledged nor muted."""
    active = state.alerts.active
    return [alert for alert in active if not (alert.acknowledged or is_muted(alert, state))]


class TopBar(Panel):
    with_run = False  # where nothing else on the screen shows the run

    def looks_at(self, state: State) -> object:
        return state

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        summary = summarise(state)
        left = words((" clusterctl ", colors.accent))
        if state.nodes:
            left += words((f" {counted(summary.nodes, 'node')}", colors.text))
        if summary.gpus_seen:
            style = colors.warn if summary.gpus < summary.gpus_seen else colors.text
            text = f"{summary.gpus}/{counted(summary.gpus_seen, 'GPU')}"
            left += words(("  ", colors.text), (text, style))
        right = words((f" {clock(state.now_s)} ", colors.strong))
        options = [
            words((f"  {state.source}" if state.source else "", colors.dim)),
            _run_words(state, colors) if self.with_run else [],
            _counts(summary, colors),
            _alert_words(state, colors),
        ]
        # What matters most is added last and dropped last.
        kept: list[Line] = []
        room = width - width_of(left) - width_of(right) - 1
        for option in reversed(options):
            if width_of(option) <= room:
                kept.insert(0, option)
                room -= width_of(option)
        return [spread(sum(kept, left), right, width, colors.text)]


def _counts(summary: Summary, colors: Palette) -> Line:
    line: Line = []
    for mark in (ALARM, MISSING, UNKNOWN, STALE):
        if mark in summary.marks:
            style = colors.mark(mark, colors.text)
            line += words(("  ", colors.text), (f"{mark}{summary.marks[mark]}", style))
    return line


def _alert_words(state: State, colors: Palette) -> Line:
    open_ones = unheard(state)
    if not open_ones:
        return []
    bad = any(alert.severity == "fail" for alert in open_ones)
    text = counted(len(open_ones), "alert")
    click = Style.from_meta({"@click": "app.switch_mode('alerts')"})
    return words(("  ", colors.text), (f" {text} ", (colors.alarm if bad else colors.warn) + click))


def _run_words(state: State, colors: Palette) -> Line:
    run = state.run
    if run is None:
        return []
    name = words((f"   {run.name} ", colors.label))
    if run.last is None:
        return name + words(("no step yet", colors.dim))
    steps = f"{run.last.step:,}/{run.last.steps_total:,}"
    return name + words((steps, colors.text), (f" {last_step_age(run, state)}", colors.dim))


def last_step_age(run: RunState, state: State) -> str:
    return units.ago(None if run.last_s is None else state.now_s - run.last_s)


class RunStrip(Panel):
    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        run = state.run
        if run is None:
            text = " no run: give --run DIR, or start below a folder with outputs/"
            return [words((text, colors.dim))]
        now = figures(run, state.now_s)
        left = words((f" {run.name} ", colors.label), *status_words(now, colors))
        if run.last is None:
            return [left]
        right = words(("loss ", colors.dim), (f"{units.number(now.smooth_loss)} ", colors.strong))
        age = f" {last_step_age(run, state)}"
        steps = words((f"  {now.step:,}/{now.steps_total:,}", colors.text), (age, colors.dim))
        pace = words((f"{units.measured(now.step_s)}/step  ", colors.text))
        eta = words(("ETA ", colors.dim), (f"{units.duration(now.eta_s)}  ", colors.text))
        room = width - width_of(left) - width_of(right) - 2
        # In order of weight; what does not fit is left out whole.
        for part, at_left in ((steps, True), (eta if now.eta_s else [], False), (pace, False)):
            if width_of(part) <= room:
                room -= width_of(part)
                left, right = (left + part, right) if at_left else (left, part + right)
        if room > 54 and len(run.recent) > 1:
            right = words((_loss(run.curve), colors.good), ("  ", colors.text)) + right
            room -= 26
        left += words(("  ", colors.text)) + progress_bar(now, min(60, room - 4), colors)
        return [spread(left, right, width, colors.text)]


@functools.lru_cache(1)  # it is drawn again only after a step
def _loss(curve: Thin) -> str:
    """The whole smoothed loss in 24 characters."""
    points = [(row[0], row[2]) for row in curve.rows()]
    values = resampled(points, 48, points[0][0], points[-1][0])
    return spark(values, nice_scale(values))


def status_words(now: Figures, colors: Palette) -> Sequence[tuple[str, Style]]:
    marks = {"waiting": UNKNOWN, "unknown": UNKNOWN, "stalled": ALARM, "failed": ALARM}
    styles = {UNKNOWN: colors.dim, ALARM: colors.alarm}
    mark, waits = marks.get(now.status, ""), now.status in ("stopped", "restarting")
    style = styles.get(mark, colors.warn if waits else colors.good)
    return [(f"{mark} {now.why_unknown or now.status}".lstrip(), style)]


def progress_bar(now: Figures, width: int, colors: Palette) -> Line:
    """▓▓▓··· 41% as wide as it is given; nothing below eight cells."""
    if width < 8:
        return []
    percent = f" {100 * now.part:3.0f}%" if now.part is not None else "   - "
    filled = gauge(now.part, width - len(percent), colors.good, colors)
    return filled + words((percent, colors.text))


class KeyBar(Panel):
    """The screens and the keys that work here; each can be clicked too."""

    def __init__(self, tabs: Sequence[Key], current: str, keys: Sequence[Key], *, id: str) -> None:
        """`current` is the key of this screen's tab. A narrow bar drops the last keys."""
        super().__init__(id=id)
        self._tabs, self._current, self._keys = tabs, current, keys

    def looks_at(self, state: State) -> object:
        return None

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        line: Line = []
        for key, word, action in self._tabs:
            click = Style.from_meta({"@click": action})
            style = colors.strong + UNDERLINED if key == self._current else colors.label
            line += words((f" {key}", colors.accent + click), (" ", colors.label + click))
            line += words((word, style + click))
        line += words(("  ", colors.text)) if self._tabs else []
        for key, word, action in self._keys:
            click = Style.from_meta({"@click": action})
            part = words((f" {key}", colors.accent + click), (f" {word} ", colors.label + click))
            if width_of(line) + width_of(part) - 1 > width:
                break
            line += part
        return [crop(line, width)]  # the last one's gap may be over the edge


class ReplayBar(Panel):
    """One line above the keys; not there where nothing is played."""

    _bar = range(0)  # the columns of the bar

    def __init__(self, replay: Player | None, *, id: str) -> None:
        super().__init__(id=id)
        self._replay = replay

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        replay = self._replay
        if replay is None:
            return []
        span_s = max(1e-9, replay.last_s - replay.first_s)
        part = min(1.0, max(0.0, (replay.now() - replay.first_s) / span_s))
        # No emoji: terminals do not agree on how wide those are.
        speed = f"► x{replay.speed:g}" if replay.speed else "|| paused"
        speed = "■ end" if part >= 1.0 else speed
        left = words((f" {speed:<10}", colors.accent))
        here, end = clock(replay.now()), clock(replay.last_s)
        ago = f"  {units.duration(replay.last_s - replay.now())} left"
        right = words(
            (f" {here}", colors.strong),
            (f" of {end}", colors.dim),
            (ago if width >= 90 else "", colors.label),
            ("  space [ ] , . + -" if width >= 110 else "", colors.dim),
            (" ", colors.dim),
        )
        start = width_of(left)
        self._bar = range(start, start + max(4, width - start - width_of(right)))
        return [left + gauge(part, len(self._bar), colors.good, colors) + right]

    async def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.x in self._bar:
            part = (offset.x - self._bar.start) / max(1, len(self._bar) - 1)
            await self.run_action(f"app.seek({part})")
