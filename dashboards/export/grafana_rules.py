"""Prometheus' alerting rules: `python -m dashboards.export.grafana_rules` prints them.

How long something must last is done by the exporter, the same as on the screens; Prometheus adds
what needs a longer memory, and whether the exporter itself is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dashboards.alerts.engine import RULES
from dashboards.export.metrics import PREFIX
from dashboards.model.alert_book import Rule

FILE = "clusterctl-alerts.yml"
SEVERITY = '{{ if eq $labels.severity "fail" }}critical{{ else }}warning{{ end }}'
WHERE = "{{ $labels.node }} {{ $labels.part }}"


@dataclass(frozen=True, slots=True)
class Own:
    """A rule that only Prometheus can judge."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    description: str


OWN = (
    Own(
        "ClusterctlExporterDown", f'up{{job="clusterctl"}} == 0 or absent({PREFIX}build_info)', "1m", "critical",
        "clusterctl export does not answer", "Nothing is known of the cluster: this is no sign that it is well.",
    ),
    Own(
        "ClusterctlExporterStuck", f"{PREFIX}state_age_seconds > 30", "1m", "critical",
        "clusterctl export answers with old figures", "Its reading of nodes and run stands still.",
    ),
    Own(
        "ClusterctlDiskFullIn6h",
        f"predict_linear({PREFIX}disk_used_bytes[1h], 6 * 3600) > {PREFIX}disk_total_bytes", "15m", "warning",
        "{{ $labels.node }} {{ $labels.path }} is full in 6 h", "At the pace of the last hour.",
    ),
    Own(
        "ClusterctlNodeComesAndGoes", f"changes({PREFIX}node_up[1h]) > 6", "0s", "warning",
        "{{ $labels.node }} was lost and came back three times in an hour", "A cable, a machine that is too busy for its sshd, or a power supply.",
    ),
)  # fmt: skip


def name_of(rule: Rule) -> str:
    """gpu.idle is ClusterctlGpuIdle."""
    return "Clusterctl" + "".join(
        word.capitalize() for word in rule.id.replace("_", ".").split(".")
    )


def render() -> str:
    """The file for `rule_files`. Strings are JSON's, which YAML reads as they are."""
    lines = [
        (
            "# Made by `python -m dashboards.export.grafana_rules`;"
            " docs/reference/alerts.md says what each id means."
        ),
        "groups:",
        "  - name: clusterctl",
        "    rules:",
    ]
    for rule in RULES:
        command = rule.command.format(
            hosts="nodes.txt", nodes="", run="RUN", remote=repr(rule.remote.format(part="PATH"))
        )
        lines += _rule(
            name_of(rule),
            f'{PREFIX}alert_active{{id="{rule.id}"}} == 1',
            "0s",
            SEVERITY,
            f"{WHERE}: {rule.id}",
            f"{rule.meaning} Limit: {rule.threshold}. Try: {' '.join(command.split())}",
        )
    for own in OWN:
        lines += _rule(own.name, own.expr, own.wait, own.severity, own.summary, own.description)
    return "\n".join(lines) + "\n"


def _rule(
    name: str, expr: str, wait: str, severity: str, summary: str, description: str
) -> list[str]:
    return [
        f"      - alert: {name}",
        f"        expr: {json.dumps(expr)}",
        f"        for: {wait}",
        "        labels:",
        f"          severity: {json.dumps(severity)}",
        "        annotations:",
        f"          summary: {json.dumps(summary)}",
        f"          description: {json.dumps(description, ensure_ascii=False)}",
    ]


if __name__ == "__main__":
    print(render(), end="")
