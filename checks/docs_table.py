"""The table of all checks for docs/reference/checks.md. `python -m checks.docs_table` prints it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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


HEAD = ("id", "what, and why", "how it is measured", "verdict", "fix")


def render() -> str:
    rows = ((SUBJECTS[id.split(".")[0]], _cells(one)) for id, one in all_checks().items())
    return markdown(HEAD, rows)


def _cells(one: Check) -> list[str]:
    what = f"{one.summary} {one.why}".strip()
    verdict = one.bad + ("" if one.advisory else " **stops a launch if unknown**")
    return [f"`{one.id}`", what, one.how, verdict, one.fix]


def markdown(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A section for each title, with a table of its rows."""
    begin = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    sections: dict[str, list[str]] = {}
    for title, cells in rows:
        line = " | ".join(cell.replace("|", "\\|") for cell in cells)
        sections.setdefault(title, ["", f"### {title}", "", *begin]).append(f"| {line} |")
    return "\n".join(itertools.chain(*sections.values())).strip() + "\n"


if __name__ == "__main__":
    print(render(), end="")
