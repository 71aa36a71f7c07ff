"""`watch --list`: all alerts with their limits."""

from __future__ import annotations

from clusterctl.output import Output
from dashboards.alerts.engine import RULES
from dashboards.model.units import span


def show(output: Output) -> None:
    if output.json:
        output.document(
            "watch",
            alerts=[
                {
                    "id": rule.id,
                    "severity": rule.severity,
                    "meaning": rule.meaning,
                    "limit": rule.threshold,
                    "begins_after_s": rule.after_s,
                    "ends_after_s": rule.clear_s,
                    "part_of": list(rule.suppressed_by),
                }
                for rule in RULES
            ],
        )
        return
    times = [(span(rule.after_s), span(rule.clear_s)) for rule in RULES]
    rows = [[r.id, r.severity.upper(), *t, r.threshold] for r, t in zip(RULES, times, strict=True)]
    output.table(["ALERT", "WORD", "BEGINS", "ENDS", "LIMIT"], rows, right=["BEGINS", "ENDS"])
