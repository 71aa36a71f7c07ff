"""Alerts as the panels need them: which are open, for which node, with which style."""

from __future__ import annotations

from rich.style import Style

from dashboards.model.alert_book import Alert
from dashboards.model.state import State
from dashboards.tui.widgets.palette import Palette


def is_muted(alert: Alert, state: State) -> bool:
    return alert.muted_until_s is not None and alert.muted_until_s > state.now_s


def unheard(state: State) -> list[Alert]:
    """Active alerts that nobody has acknowledged or muted."""
    active = state.alerts.active
    return [alert for alert in active if not (alert.acknowledged or is_muted(alert, state))]


def severity_style(alert: Alert, colors: Palette) -> Style:
    return colors.bad if alert.severity == "fail" else colors.warn
