"""The Grafana board, from the list of metrics: `python -m tests.dashboards.grafana_board` writes it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from dashboards.commands.export import PRINTED
from dashboards.export.metrics import METRICS, PREFIX, Metric

WIDE, HIGH, ACROSS = 8, 7, 3  # in Grafana's units, of which 24 lie side by side
SOURCE = {"type": "prometheus", "uid": "${source}"}
SOURCES = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
ALERTS = {
    "name": "Alerts",
    "datasource": SOURCE,
    "enable": True,
    "iconColor": "red",
    "expr": f'sum by (id, node) ({PREFIX}alert_active{{severity="fail"}}) > 0',
    "titleFormat": "{{id}}",
    "textFormat": "{{node}}",
}


def board() -> dict[str, Any]:
    """The board as Grafana imports it; the user chooses data source, nodes and run."""
    return {
        "title": "clusterctl",
        "uid": "clusterctl",
        "tags": ["gpu", "training"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                SOURCES,
                _variable("node", f"label_values({PREFIX}node_reading_age_seconds, node)"),
                _variable("run", f"label_values({PREFIX}run_step, run)"),
            ]
        },
        "annotations": {"list": [ALERTS]},
        "panels": list(_panels()),
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 3,
    }


def _panels() -> Iterator[dict[str, Any]]:
    rows: dict[str, dict[str, list[Metric]]] = {}
    for metric in METRICS:
        if metric.row:
            rows.setdefault(metric.row, {}).setdefault(metric.panel, []).append(metric)
    numbers, y = itertools.count(1), 0
    for title, panels in rows.items():
        row = {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "panels": []}
        yield {**row, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        y += 1
        for place, (name, metrics) in enumerate(panels.items()):
            x, down = WIDE * (place % ACROSS), HIGH * (place // ACROSS)
            yield _panel(
                next(numbers), name, metrics, {"x": x, "y": y + down, "w": WIDE, "h": HIGH}
            )
        y += HIGH * math.ceil(len(panels) / ACROSS)


def _panel(number: int, title: str, metrics: list[Metric], place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": "; ".join(dict.fromkeys(metric.help for metric in metrics)),
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": metrics[0].unit, "custom": {"fillOpacity": 10, "spanNulls": False}},
            "overrides": [],
        },
        "options": {
            # Said in full: from schema 37 on a legend that does not say so is not shown.
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression(metric), "legendFormat": metric.legend}
            for index, metric in enumerate(metrics)
        ],
    }  # fmt: skip


def expression(metric: Metric) -> str:
    """The query of a metric, for the nodes and runs that the user has chosen."""
    chosen = [f'{label}=~"${label}"' for label in ("node", "run") if label in metric.labels]
    # What belongs to no node is always shown.
    if metric.name == "alert_active":
        chosen = ['node=~"$node|"']
    return metric.query.format(metric.full_name + (f"{{{','.join(chosen)}}}" if chosen else ""))


def render() -> str:
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    PRINTED["board"].write_text(render(), encoding="utf-8")
