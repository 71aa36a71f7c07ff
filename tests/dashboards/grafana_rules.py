"""Prometheus' alerting rules: `python -m tests.dashboards.grafana_rules` writes them.

The exporter decides how long something must last, as the screens do; Prometheus adds what needs a
longer history, and whether the exporter runs.
"""

from __future__ import annotations

import json

from dashboards.alerts.engine import RULES
from dashboards.commands.export import PRINTED
from dashboards.export.metrics import PREFIX
from dashboards.model.alert_book import Rule

SEVERITY = '{{ if eq $labels.severity "fail" }}critical{{ else }}warning{{ end }}'
HEAD = """\
# Made from the list of alerts; the ids are in docs/reference/alerts.md.
groups:
  - name: clusterctl
    rules:
"""
WHERE = "{{ $labels.node }} {{ $labels.part }}"


RULE = """\
      - alert: {}
        expr: {}
        for: {}
        labels:
          severity: {}
        annotations:
          summary: {}
          description: {}
"""


def _text(name: str, expr: str, wait: str, severity: str, summary: str, description: str) -> str:
    """A rule of the file. Strings are JSON's, which YAML reads as they are."""
    expr, severity, summary = map(json.dumps, (expr, severity, summary))
    description = json.dumps(description, ensure_ascii=False)
    return RULE.format(name, expr, wait, severity, summary, description)


# Rules that only Prometheus can judge.
OWN = (
    _text(
        "ClusterctlExporterDown", f'up{{job="clusterctl"}} == 0 or absent({PREFIX}build_info)', "1m", "critical",
        "clusterctl export does not answer", "Nothing is known of the cluster: this is no sign that it is well.",
    ),
    _text(
        "ClusterctlExporterStuck", f"{PREFIX}state_age_seconds > 30", "1m", "critical",
        "clusterctl export answers with old figures", "Its reading of nodes and run stands still.",
    ),
    _text(
        "ClusterctlDiskFullIn6h",
        f"predict_linear({PREFIX}disk_used_bytes[1h], 6 * 3600) > {PREFIX}disk_total_bytes", "15m", "warning",
        "{{ $labels.node }} {{ $labels.path }} is full in 6 h", "At the pace of the last hour.",
    ),
    _text(
        "ClusterctlNodeComesAndGoes", f"changes({PREFIX}node_up[1h]) > 6", "0s", "warning",
        "{{ $labels.node }} was lost and came back three times in an hour", "A cable, a machine that is too busy for its sshd, or a power supply.",
    ),
)  # fmt: skip


def name_of(rule: Rule) -> str:
    """gpu.idle is ClusterctlGpuIdle."""
    return "Clusterctl" + "".join(map(str.capitalize, rule.id.replace("_", ".").split(".")))


def _exported(rule: Rule) -> str:
    remote = repr(rule.remote.format(part="PATH"))
    command = rule.command.format(hosts="nodes.txt", nodes="", run="RUN", remote=remote)
    expr = f'{PREFIX}alert_active{{id="{rule.id}"}} == 1'
    advice = f"{rule.meaning} Limit: {rule.threshold}. Try: {' '.join(command.split())}"
    return _text(name_of(rule), expr, "0s", SEVERITY, f"{WHERE}: {rule.id}", advice)


def render() -> str:
    return HEAD + "".join([*map(_exported, RULES), *OWN])


if __name__ == "__main__":
    PRINTED["rules"].write_text(render(), encoding="utf-8")
