"""Alerts as the panels need them: which are open, for which node, with which style."""

from __future__ import annotations

from rich.style import Style

from dashboards.model import units
from dashboards.model.alert_book import Alert
from dashboards.model.state import State
from dashboards.tui.widgets.palette import Palette
from dashboards.tui.widgets.panel import Line, words

WORDS = {"fail": "FAIL", "warn": "WARN"}


def is_muted(alert: Alert, state: State) -> bool:
    return alert.muted_until_s is not None and alert.muted_until_s > state.now_s


def unheard(state: State) -> list[Alert]:
    """Active alerts that nobody has acknowledged or muted."""
    return [
        alert
        for alert in state.alerts.active
        if not alert.acknowledged and not is_muted(alert, state)
    ]


def alerts_of(state: State, node: str) -> list[Alert]:
    """Active alerts that name this node."""
    return [
        alert for alert in state.alerts.active if node in alert.nodes and not is_muted(alert, state)
    ]


def severity_style(alert: Alert, colors: Palette) -> Style:
    return colors.bad if alert.severity == "fail" else colors.warn


def alert_line(alert: Alert, state: State, colors: Palette) -> Line:
    """`! FAIL gpu.idle  2 min  101 W, the others 700 W`: for the screens that are about else."""
    style = colors.dim if alert.acknowledged else severity_style(alert, colors)
    return words(
        (f" {'!' if alert.severity == 'fail' else ' '} {WORDS[alert.severity]} ", style),
        (f"{alert.id}  ", style),
        (f"{alert.subject}  ", colors.label),
        (alert.text, colors.dim if alert.acknowledged else colors.text),
        (f"  for {units.age(state.now_s - alert.first_s)}", colors.dim),
    )
