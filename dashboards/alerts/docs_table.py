"""The table of all alerts, of docs/reference/alerts.md and `watch --list`.

`python -m dashboards.alerts.docs_table` prints it.
"""

from __future__ import annotations

from checks.docs_table import markdown
from clusterctl.output import Output
from dashboards.alerts.engine import RULES
from dashboards.model.alert_book import Rule
from dashboards.model.units import span

HEAD = ("id", "why", "limit", "begins, ends after", "what to type next")
SUBJECTS = {
    "run": "The run",
    "loss": "The run",
    "wandb": "The run",
    "gpu": "GPUs",
    "node": "Nodes",
    "clock": "Clocks",
    "link": "The network between nodes",
    "disk": "Disks",
}


def render() -> str:
    return markdown(HEAD, ((SUBJECTS[rule.id.partition(".")[0]], _cells(rule)) for rule in RULES))


def _cells(rule: Rule) -> list[str]:
    others = " or ".join(f"`{id}`" for id in rule.suppressed_by)
    limit = rule.threshold + (f"; suppressed by {others}" if others else "")
    times = ", ".join(span(s) if s else "at once" for s in (rule.after_s, rule.clear_s))
    id = f"`{rule.id}` {rule.severity.upper()}"
    return [id, rule.meaning, limit, times, f"`{_command(rule)}`"]


def show(output: Output) -> None:
    """For `watch --list`."""
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


def _command(rule: Rule) -> str:
    remote = f"'{rule.remote.format(part='PATH')}'" if rule.remote else ""
    values = {"hosts": "nodes.txt", "nodes": "-w NODES", "run": "RUN", "remote": remote}
    return " ".join(rule.command.format(**values).split())


if __name__ == "__main__":
    print(render(), end="")
