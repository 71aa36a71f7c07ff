"""Which alerts are muted, and which the user has not seen."""

from __future__ import annotations

from dashboards.model.alert_book import Alert
from dashboards.model.state import State


def is_muted(alert: Alert, state: State) -> bool:
    return alert.muted_until_s is not None and alert.muted_until_s > state.now_s


def unheard(state: State) -> list[Alert]:
    """Active alerts that are neither acknowledged nor muted."""
    active = state.alerts.active
    return [alert for alert in active if not (alert.acknowledged or is_muted(alert, state))]
