"""What is wrong now, since when, on which nodes, and what to do about it."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.style import Style
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.widget import Widget

from clusterctl.nodes import fold
from dashboards.model import units
from dashboards.model.alert_book import Alert
from dashboards.model.fleet import short_names
from dashboards.model.state import State
from dashboards.tui.screens.base import MOVING, TopScreen
from dashboards.tui.widgets.attention import WORDS, is_muted, severity_style
from dashboards.tui.widgets.listing import Listing
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, Panel, words

MUTE_S = 3600.0


def clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


class AlertList(Listing):
    """Active ones, worst first, then those that are over."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.with_history = True
        self._prefix = ""  # what all nodes' names begin with
        self.listed: list[Alert] = []
        self._on: tuple[object, ...] | None = None  # what the cursor stands on

    def chosen(self) -> Alert | None:
        return self.listed[self.at] if self.at < len(self.listed) else None

    def put(self, at: int) -> None:
        at = max(0, min(len(self.listed) - 1, at))
        self._on = _same(self.listed[at]) if self.listed else None
        super().put(at)

    def heading(self, state: State, width: int, colors: Palette) -> list[Line]:
        book = state.alerts
        muted = sum(is_muted(alert, state) for alert in book.active)
        note = f"{muted} muted" if muted else ""
        prefix, _ = short_names(state.nodes)
        self._prefix = prefix
        self.title(f"alerts {len(book.active)}" + (f"  {prefix}…" if prefix else ""), note)
        self.listed = sorted(book.active, key=lambda alert: is_muted(alert, state))
        if self.with_history:
            self.listed += reversed(book.history)
        # The cursor stays on its alert when others come, go, or step back.
        places = [place for place, alert in enumerate(self.listed) if _same(alert) == self._on]
        if places:
            self.at = places[0]
        wide = f"{'last':<10}" if width >= 102 else ""
        where = f"{'where':<{24 if width >= 102 else 16}}what"
        text = f"    {'since':<10}{wide}{'for':<8}{'':<6}{'alert':<16}{where}"
        return [words((text, colors.dim))] if self.listed else []

    def rows(self, state: State, width: int, colors: Palette) -> Sequence[Line]:
        return [self._row(alert, state, width, colors) for alert in self.listed]

    def empty(self, state: State, colors: Palette) -> list[Line]:
        return [words((" nothing is wrong, and nothing was in the last hour", colors.good))]

    def _row(self, alert: Alert, state: State, width: int, colors: Palette) -> Line:
        over = alert.cleared_s is not None
        quiet = over or alert.acknowledged or is_muted(alert, state)
        style = colors.dim if quiet else severity_style(alert, colors)
        text = colors.dim if quiet else colors.text
        mark = "!" if alert.is_known else "-"
        if quiet:
            mark = " " if over else "m" if is_muted(alert, state) else "a"
        until = state.now_s if alert.cleared_s is None else alert.cleared_s
        last = f"{clock(alert.last_s):<10}" if width >= 100 else ""
        wide = 24 if width >= 100 else 16
        where = self._short(alert.subject)
        where = f"{where if len(where) < wide else where[: wide - 2] + '…':<{wide}}"
        return words(
            (f"{mark} ", style),
            (f"{clock(alert.first_s):<10}{last}", colors.label),
            (f"{units.age(max(0.0, until - alert.first_s)):<8}", colors.label),
            (f"{'over' if over else WORDS[alert.severity]:<6}", style),
            (f"{alert.id:<15} ", style),
            (where, text),
            (self._short(alert.text), text),
        )

    def _short(self, text: str) -> str:
        return text.replace(self._prefix, "") if self._prefix else text


def _same(alert: Alert) -> tuple[object, ...]:
    """What stays the same of an alert while it lasts."""
    return alert.id, alert.units, alert.cleared_s


class AlertDetail(Panel):
    """Everything about the alert under the cursor."""

    def __init__(self, listing: AlertList, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._listing = listing

    def paint(self, state: State, width: int, height: int, colors: Palette) -> list[Line]:
        alert = self._listing.chosen()
        if alert is None:
            self.title("")
            return []
        self.title(f"{alert.id}  {alert.subject}")
        entries: list[tuple[str, str, Style]] = [
            ("what", alert.text, severity_style(alert, colors)),
            ("nodes", fold(alert.nodes) if alert.nodes else units.UNKNOWN, colors.text),
            ("seen", self._times(alert, state), colors.text),
            ("do", alert.command or units.UNKNOWN, colors.accent),
        ]
        if is_muted(alert, state):
            assert alert.muted_until_s is not None
            entries.append(("muted", f"until {clock(alert.muted_until_s)}", colors.label))
        elif alert.acknowledged:
            entries.append(("ack", "you know of it: it is not counted any more", colors.label))
        lines: list[Line] = []
        for name, text, style in entries:
            for place, piece in enumerate(textwrap.wrap(text, max(20, width - 10)) or [""]):
                lines.append(words((f" {'' if place else name:<8}", colors.dim), (piece, style)))
        return lines

    def _times(self, alert: Alert, state: State) -> str:
        text = f"first {clock(alert.first_s)}, last {clock(alert.last_s)}"
        if alert.cleared_s is not None:
            return f"{text}, over since {clock(alert.cleared_s)}"
        if not alert.is_known:
            text += " (cannot be seen just now)"
        return f"{text}, for {units.span(max(0.0, state.now_s - alert.first_s))}"


class AlertsScreen(TopScreen):
    """The fourth screen."""

    RUN_ABOVE = True
    TAB = "4"
    KEYS = (
        ("a", "ack", "screen.acknowledge"),
        ("m", "mute 1 h", "screen.mute"),
        ("enter", "go", "screen.goto"),
        ("e", "copy", "screen.copy"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVING,
        Binding("a", "acknowledge", "acknowledge"),
        Binding("m", "mute", "mute for an hour"),
        Binding("enter", "goto", "go where it is"),
        Binding("x", "history", "show or hide those that are over"),
        Binding("e", "copy", "copy the command"),
        Binding("escape", "app.switch_mode('cluster')", "back"),
    ]

    def body(self) -> Iterable[Widget]:
        listing = AlertList(id="alerts")
        yield listing
        yield AlertDetail(listing, id="alert")

    @property
    def listing(self) -> AlertList:
        return self.query_one(AlertList)

    def to_copy(self) -> str:
        alert = self.listing.chosen()
        return alert.command or alert.text if alert else ""

    def action_move(self, rows: int) -> None:
        self.listing.move(rows)

    def action_page(self, pages: int) -> None:
        self.listing.page(pages)

    def on_listing_moved(self) -> None:
        self.query_one(AlertDetail).again()

    def on_listing_opened(self) -> None:
        self.action_goto()

    def action_acknowledge(self) -> None:
        alert = self.listing.chosen()
        if alert is not None and alert.cleared_s is None:
            self.listing.put(self.listing.at)
            self.top.acknowledge(alert.key, not alert.acknowledged)

    def action_mute(self) -> None:
        alert = self.listing.chosen()
        if alert is not None and alert.cleared_s is None:
            self.listing.put(self.listing.at)
            until = None if is_muted(alert, self.top.state) else self.top.state.now_s + MUTE_S
            self.top.mute(alert.key, until)

    def action_history(self) -> None:
        self.listing.with_history = not self.listing.with_history
        self.again()

    def action_goto(self) -> None:
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

    def commands(self) -> Iterable[SystemCommand]:
        yield SystemCommand("Acknowledge", "count this alert no more (a)", self.action_acknowledge)
        yield SystemCommand("Mute", "this alert for an hour (m)", self.action_mute)
        yield SystemCommand("History", "show or hide alerts that are over (x)", self.action_history)


def _gpu_of(alert: Alert) -> int:
    """The GPU in a subject such as `ml-64-node-004 GPU 3`; 0 where it names none."""
    found = re.search(r"\bGPU (\d+)", alert.subject)
    return int(found[1]) if found else 0
