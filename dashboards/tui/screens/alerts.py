"""What is wrong now, since when, on which nodes, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from rich.style import Style
from textual.binding import BindingType
from textual.widget import Widget

from clusterctl.nodes import fold
from clusterctl.report_lines import cut, wrapped
from dashboards.alerts import engine
from dashboards.model import units
from dashboards.model.alert_book import Alert
from dashboards.model.state import State
from dashboards.model.table import short_names
from dashboards.tui.screens.base import BACK, Commands, ListScreen
from dashboards.tui.widgets.bars import is_muted
from dashboards.tui.widgets.listing import Listing
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, clock, words

MUTE_S = 3600.0


class AlertList(Listing[Alert]):
    """Active ones, worst first, then those that are over."""

    with_history = True
    _prefix = ""  # what all nodes' names begin with
    _on: tuple[object, ...] | None = None  # the alert under the cursor

    def put(self, at: int) -> None:
        at = max(0, min(len(self.listed) - 1, at))
        self._on = _same(self.listed[at]) if self.listed else None
        super().put(at)

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        book = state.alerts
        muted = sum(is_muted(alert, state) for alert in book.active)
        note = f"{muted} muted" if muted else ""
        self._prefix, _ = short_names(state.nodes)
        prefix = f"  {self._prefix}…" if self._prefix else ""
        self.title(f"alerts {len(book.active)}{prefix}", note)
        active = sorted(book.active, key=lambda alert: is_muted(alert, state))
        self.listed = [*active, *reversed(book.history if self.with_history else ())]
        # The cursor stays on its alert when others come, go, or step back.
        places = [place for place, alert in enumerate(self.listed) if _same(alert) == self._on]
        if places:
            self.at = places[0]
        last, wide = ("last      ", 24) if width >= 102 else ("", 16)
        text = f"    since     {last}for     {'':<6}{'alert':<16}{'where':<{wide}}what"
        return [words((text, colors.dim))] if self.listed else []

    def rows(self, state: State, width: int, colors: Palette) -> list[Line]:
        return [self._row(alert, state, width, colors) for alert in self.listed]

    def empty(self, colors: Palette) -> list[Line]:
        return [words((" nothing is wrong, and nothing was in the last hour", colors.good))]

    def _row(self, alert: Alert, state: State, width: int, colors: Palette) -> Line:
        over, muted = alert.cleared_s is not None, is_muted(alert, state)
        style, text = colors.severity(alert.severity), colors.text
        mark = "!" if alert.is_known else "-"
        if over or muted or alert.acknowledged:
            style = text = colors.dim
            mark = " " if over else "m" if muted else "a"
        until = state.now_s if alert.cleared_s is None else alert.cleared_s
        last, wide = (f"{clock(alert.last_s):<10}", 24) if width >= 100 else ("", 16)
        where = cut(self._short(alert.subject), wide - 1)
        return words(
            (f"{mark} ", style),
            (f"{clock(alert.first_s):<10}{last}", colors.label),
            (f"{units.duration(max(0.0, until - alert.first_s)):<12}", colors.label),
            (f"{'over' if over else alert.severity.upper():<6}", style),
            (f"{alert.id:<15} ", style),
            (f"{where:<{wide}}", text),
            (self._short(alert.text), text),
        )

    def _short(self, text: str) -> str:
        return text.replace(self._prefix, "") if self._prefix else text


def _same(alert: Alert) -> tuple[object, ...]:
    """What stays the same of an alert while it lasts."""
    return alert.id, alert.units, alert.cleared_s


class AlertDetail(Panel):
    def paint(self, state: State, width: int, height: int, colors: Palette) -> Iterator[Line]:
        alert = self.screen.query_one(AlertList).chosen()
        if alert is None:
            self.title("")
            return
        self.title(f"{alert.id}  {alert.subject}")
        entries: list[tuple[str, str, Style]] = [
            ("what", alert.text, colors.severity(alert.severity)),
            ("nodes", fold(alert.nodes) if alert.nodes else units.UNKNOWN, colors.text),
            ("seen", self._times(alert, state), colors.text),
            ("do", alert.command or units.UNKNOWN, colors.accent),
        ]
        if alert.muted_until_s is not None and is_muted(alert, state):
            entries.append(("muted", f"until {clock(alert.muted_until_s)}", colors.label))
        elif alert.acknowledged:
            entries.append(("ack", "acknowledged; no longer counted", colors.label))
        for name, text, style in entries:
            for piece in wrapped(text, max(20, width - 10)):
                yield words((f" {name:<8}", colors.dim), (piece, style))
                name = ""

    def _times(self, alert: Alert, state: State) -> str:
        text = f"first {clock(alert.first_s)}, last {clock(alert.last_s)}"
        if alert.cleared_s is not None:
            return f"{text}, over since {clock(alert.cleared_s)}"
        if not alert.is_known:
            text += " (cannot be seen just now)"
        return f"{text}, for {units.duration(max(0.0, state.now_s - alert.first_s))}"


class AlertsScreen(ListScreen):
    RUN_ABOVE = True
    TAB = "4"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("a", "acknowledge", "ack"),
        ("m", "mute", "mute 1 h"),
        ("enter", "enter", "go"),
        ("x", "history"),
        ("e", "copy", "copy"),
        BACK,
    ]

    def body(self) -> Iterable[Widget]:
        yield AlertList(id="alerts")
        yield AlertDetail(id="alert")

    @property
    def listing(self) -> AlertList:
        return self.query_one(AlertList)

    def to_copy(self) -> str:
        alert = self.listing.chosen()
        return alert.command or alert.text if alert else ""

    def on_panel_moved(self) -> None:
        self.query_one(AlertDetail).again()

    def _active(self) -> Alert | None:
        """The alert under the cursor, unless it is over; the cursor follows it from now on."""
        alert = self.listing.chosen()
        if alert is None or alert.cleared_s is not None:
            return None
        self.listing.put(self.listing.at)
        return alert

    def action_acknowledge(self) -> None:
        alert, book = self._active(), self.top.state.alerts
        if alert is not None:
            self.top.set_alerts(engine.acknowledge(book, alert.key, not alert.acknowledged))

    def action_mute(self) -> None:
        alert, state = self._active(), self.top.state
        if alert is not None:
            until_s = None if is_muted(alert, state) else state.now_s + MUTE_S
            self.top.set_alerts(engine.mute(state.alerts, alert.key, until_s))

    def action_history(self) -> None:
        self.listing.with_history = not self.listing.with_history
        self.again()

    def action_enter(self) -> None:
        """To the node that it names, to the run, or to the cluster."""
        alert = self.listing.chosen()
        if alert is None:
            return
        if alert.id.startswith("run."):
            self.app.switch_mode("run")
        elif len(alert.nodes) == 1:
            self.top.open_node(alert.nodes[0], _gpu_of(alert))
        else:
            self.app.switch_mode("cluster")

    def commands(self) -> Commands:
        return (
            ("Acknowledge", "count this alert no more (a)", "acknowledge"),
            ("Mute", "this alert for an hour (m)", "mute"),
            ("History", "show or hide alerts that are over (x)", "history"),
        )


def _gpu_of(alert: Alert) -> int:
    """The GPU in a subject such as `ml-64-node-004 GPU 3`; 0 where it names none."""
    found = re.search(r"\bGPU (\d+)", alert.subject)
    return int(found[1]) if found else 0
