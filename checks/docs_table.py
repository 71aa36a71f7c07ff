"""The table of all checks for docs/reference/checks.md. `python -m checks.docs_table` prints it."""

from __future__ import annotations

from checks.registry import Check
from checks.runner import all_checks

SUBJECTS = {
    "active": "Nodes made to work (only with `--active`)",
    "fleet": "GPUs of all nodes",
    "gpu": "GPUs",
    "host": "The machine",
    "ib": "InfiniBand and RoCE",
    "launch": "The launch line",
    "net": "Network",
    "shell": "Shell",
    "software": "Software",
    "ssh": "The way in",
    "storage": "Storage",
    "time": "Time",
}


def render() -> str:
    """Markdown: a section for each subject, a row for each check."""
    lines: list[str] = []
    subject = ""
    for id, one in all_checks().items():
        if id.split(".")[0] != subject:
            subject = id.split(".")[0]
            lines += ["", f"### {SUBJECTS[subject]}", ""]
            lines += [
                "| id | what, and why | how it is measured | verdict | fix |",
                "|---|---|---|---|---|",
            ]
        lines.append("| " + " | ".join(_cells(one)) + " |")
    return "\n".join(lines).strip() + "\n"


def _cells(one: Check) -> list[str]:
    what = f"{one.summary} {one.why}".strip()
    verdict = one.bad + ("" if one.advisory else " **stops a launch if unknown**")
    cells = [f"`{one.id}`", what, one.how, verdict, f"{one.fix}"]
    return [cell.replace("|", "\\|") for cell in cells]


if __name__ == "__main__":
    print(render(), end="")
