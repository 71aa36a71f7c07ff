"""The tables of docs/reference, made from the code. `python -m tests.reference_tables` writes them.

A table stands between a document's two marks, or behind the first where there is no second.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.reference import xid_codes, xid_nvlink5
from checks.registry import Check
from checks.runner import all_checks
from checks.units import duration
from clusterctl.launch.causes import cuda_errors, signatures
from clusterctl.launch.causes.kinds import Kind
from dashboards.alerts.engine import RULES
from dashboards.model.alert_book import Rule
from tests.clusterctl.launch.causes.nccl_texts import LAST_ERRORS, RESULTS
from tests.faults import cases  # noqa: F401 - enters the faults
from tests.faults.fault import FAULTS
from tests.faults.table import reference
from trainer.allowed_values import allowed
from trainer.config import keys
from trainer.config.upstream import REFUSED, TYPES
from trainer.models.stdit_config import STDiT3Config
from trainer.runlog.figures import FIGURES, OF_EVENTS

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
CHECK_SUBJECTS = {
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
ALERT_SUBJECTS = {
    "run": "The run",
    "loss": "The run",
    "wandb": "The run",
    "gpu": "GPUs",
    "node": "Nodes",
    "clock": "Clocks",
    "link": "The network between nodes",
    "disk": "Disks",
}
# Prefix of the keys, their dataclass, heading.
CONFIG_SECTIONS: tuple[tuple[str, Any, str], ...] = (
    ("", keys.Config, "The run"),
    ("dataset.", keys.DatasetConfig, "dataset"),
    ("model.", keys.ModelConfig, "model"),
    ("model.", STDiT3Config, "model: the network's own numbers"),
    ("vae.", keys.VaeConfig, "vae"),
    ("text_encoder.", keys.TextEncoderConfig, "text_encoder"),
    ("scheduler.", keys.SchedulerConfig, "scheduler"),
    ("sample.", keys.SampleConfig, "sample"),
    ("validation.", keys.ValidationConfig, "validation"),
)
_FIELD = re.compile(r"(\w+): .*?(?:  # (.*))?$")  # one line; name and comment


def checks() -> str:
    head = ("id", "what, and why", "how it is measured", "verdict", "fix")
    return _by_subject(head, CHECK_SUBJECTS, {id: _check(one) for id, one in all_checks().items()})


def _check(one: Check) -> list[str]:
    what = f"{one.summary} {one.why}".strip()
    verdict = one.bad + ("" if one.advisory else " **stops a launch if unknown**")
    return [f"`{one.id}`", what, one.how, verdict, one.fix]


def alerts() -> str:
    head = ("id", "why", "limit", "begins, ends after", "what to type next")
    return _by_subject(head, ALERT_SUBJECTS, {rule.id: _alert(rule) for rule in RULES})


def _alert(rule: Rule) -> list[str]:
    others = " or ".join(f"`{id}`" for id in rule.suppressed_by)
    limit = rule.threshold + (f"; suppressed by {others}" if others else "")
    times = ", ".join(duration(s) if s else "at once" for s in (rule.after_s, rule.clear_s))
    remote = f"'{rule.remote.format(part='PATH')}'" if rule.remote else ""
    values = {"hosts": "nodes.txt", "nodes": "-w NODES", "run": "RUN", "remote": remote}
    command = " ".join(rule.command.format(**values).split())
    return [f"`{rule.id}` {rule.severity.upper()}", rule.meaning, limit, times, f"`{command}`"]


def causes() -> str:
    lines = ["| class | meaning | deterministic | of the node |", "|---|---|---|---|"]
    for kind in Kind:
        meaning = kind.meaning + (". Always a consequence" if kind.is_consequence else "")
        marks = ("yes" if mark else "" for mark in (kind.is_deterministic, kind.is_of_node))
        lines.append(f"| {' | '.join((f'`{kind}`', meaning, *marks))} |")
    return "\n".join(lines) + "\n"


def error_texts() -> str:
    """CUDA by number, NCCL by result, then what NCCL names as its last error."""
    lines = ["### CUDA", "", "| number | runtime, driver | text | whose fault | signature |"]
    lines.append("|---|---|---|---|---|")
    for error in cuda_errors.ERRORS:
        names = [f"cudaError{error.runtime}"] if error.runtime else []
        names += [f"CUDA_ERROR_{error.driver}"] if error.driver else []
        cells = (str(error.number), ", ".join(map(_code, names)), error.text)
        lines.append(_graded(cells, error.signature))
    lines += ["", "### NCCL: results", "", "| result | text | whose fault | signature |"]
    lines.append("|---|---|---|---|")
    lines += [_graded((_code(result), text), name) for result, text, name in RESULTS]
    lines += ["", "### NCCL: last errors", "", "| example | whose fault | signature |"]
    lines.append("|---|---|---|")
    lines += [_graded((_code(text.strip()),), name) for text, name in LAST_ERRORS.items()]
    return "\n".join(lines) + "\n"


def catalogue() -> Iterator[tuple[str, xid_codes.Grade]]:
    """Numbers with their grade, equal neighbours together: `39-41`."""
    numbers = sorted(xid_codes.GRADES)
    begin = numbers[0]
    for number, after in zip(numbers, [*numbers[1:], None], strict=True):
        if after is None or xid_codes.GRADES[after] != xid_codes.GRADES[number]:
            yield (
                (f"{begin}-{number}" if begin != number else str(number)),
                xid_codes.GRADES[number],
            )
            begin = after or begin


def xids() -> str:
    """All numbers, then what Xid 154 names, then why a link of NVLink 5 is down."""
    lines = ["| Xid | meaning | verdict | action |", "|---|---|---|---|"]
    for numbers, one in catalogue():
        lines.append(_grade(numbers, one))
    lines += ["", "Xid 154, by the number behind `to`:", "", "| to | meaning | verdict | action |"]
    lines.append("|---|---|---|---|")
    lines += [_grade(f"`0x{number:x}`", one) for number, one in xid_codes.RECOVERIES.items()]
    lines += ["", "Xid 144 to 150, by the part of the link and the second word in parentheses:", ""]
    lines += ["| Xid | part | fatal status |", "|---|---|---|"]
    for number, about in xid_nvlink5.PARTS.items():
        lines.append(f"| {number} | {about} | {_fatal(number) or 'none'} |")
    lines += ["", "Xid 149 `NETIR_LINK_EVT`, by bits 20 to 25 of the first word:", ""]
    lines += ["| reason | look at |", "|---|---|"]
    for reason, what in sorted(xid_nvlink5.REASONS.items()):
        lines.append(f"| `{reason:06b}` | {what} |")
    return "\n".join(lines) + "\n"


def _grade(number: str, one: xid_codes.Grade) -> str:
    fix = f": {one.fix}" if one.fix else ""
    return f"| {number} | {_cell(one.meaning)} | {one.verdict.name} | {one.action.value}{fix} |"


def _fatal(number: int) -> str:
    parts = {name: codes for (xid, name), codes in xid_nvlink5.FATAL.items() if xid == number}
    return ", ".join(
        f"`{name}…` {' '.join(f'0x{code:x}' for code in sorted(codes))}"
        for name, codes in parts.items()
    )


def _graded(cells: Sequence[str], name: str) -> str:
    return f"| {' | '.join((*map(_cell, cells), _whose(signatures.NAMED[name]), _code(name)))} |"


def _whose(one: signatures.Signature) -> str:
    if one.is_of_node:
        return "node"
    if one.kind.is_consequence:
        return "another rank"
    words = {
        Kind.ENVIRONMENT: "driver or environment",
        Kind.CUDA_OOM: "memory",
        Kind.DISK_FULL: "space",
    }
    return words.get(one.kind, "program")


def figures() -> str:
    """Of a step, then of events."""
    lines = ["| key | meaning | W&B and TensorBoard | Prometheus |", "|---|---|---|---|"]
    for name, one in FIGURES.items():
        part = f" (by {one.part})" if one.part else ""
        metric = f"`clusterctl_run_{one.metric}`" if one.metric else ""
        cells = (f"`{name}`", f"{one.meaning}{part}", _code(one.tracker), metric)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", "Of events:", "", "| event | key of its data | meaning | W&B and TensorBoard |"]
    lines.append("|---|---|---|---|")
    for (event, key), one in OF_EVENTS.items():
        lines.append(f"| `{event}` | `{key}` | {_cell(one.meaning)} | {_code(one.tracker)} |")
    return "\n".join(lines) + "\n"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""


def _by_subject(
    head: Sequence[str], subjects: Mapping[str, str], rows: Mapping[str, Sequence[str]]
) -> str:
    """A section for each title, with the rows of its subjects, by ids like `gpu.driver`."""
    begin = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    sections: dict[str, list[str]] = {}
    for id, cells in rows.items():
        title, line = subjects[id.split(".")[0]], " | ".join(map(_cell, cells))
        sections.setdefault(title, ["", f"### {title}", "", *begin]).append(f"| {line} |")
    return "\n".join(itertools.chain(*sections.values())).strip() + "\n"


def configs() -> str:
    """All keys, then what other spellings and refused keys there are."""
    lines: list[str] = [""]
    for prefix, cls, heading in CONFIG_SECTIONS:
        lines += [f"### {heading}", "", f"{(cls.__doc__ or '').splitlines()[0]}", ""]
        lines += ["| key | type | default | |", "| --- | --- | --- | --- |"]
        for key, kind, default, comment in config_rows(prefix, cls):
            lines.append(f"| `{key}` | {_cell(kind)} | `{default}` | {_cell(comment)} |")
        lines.append("")
    lines += _config_keys("Other spellings that are understood", "aliases", "means")
    lines += _config_keys("Keys of published files that need nothing here", "harmless", "why")
    lines += _config_keys("Keys that are refused", "refused", "why")
    lines += ["### Type names", "", "| section | `type` in a file | here |", "| --- | --- | --- |"]
    for section, names in TYPES.items():
        lines += [f"| {section} | `{name}` | `{ours}` |" for name, ours in names.items()]
        for name, why in REFUSED[section].items():
            lines.append(f"| {section} | `{name}` | refused: {_cell(why)} |")
    return "\n".join([*lines, "", ""])


def config_rows(prefix: str, cls: Any) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default, what it means; sections inside are not rows of their own."""
    comments = _comments(cls)
    for field in dataclasses.fields(cls):
        if not field.metadata.get("settable", True) or str(field.type).endswith("Config"):
            continue
        rule = allowed(field)
        kind = f"{field.type}, {rule.words}" if rule else str(field.type)
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        yield f"{prefix}{field.name}", kind, repr(default), comments[field.name]


def _comments(cls: type) -> dict[str, str]:
    """Field -> the comment beside it, else the line above."""
    found, above = {}, ""
    for line in map(str.strip, inspect.getsource(cls).splitlines()):
        if match := _FIELD.match(line):
            found[match[1]] = match[2] or above
        above = line[2:] if line.startswith("# ") else ""
    return found


def _config_keys(heading: str, attribute: str, column: str) -> Iterable[str]:
    yield from [f"### {heading}", "", f"| key | {column} |", "| --- | --- |"]
    for prefix, cls, _ in CONFIG_SECTIONS:
        for key, text in getattr(cls, attribute, {}).items():
            shown = f"`{text}`" if attribute == "aliases" else _cell(text)
            yield f"| `{prefix}{key}` | {shown} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "alerts.md": alerts,
    "checks.md": checks,
    "configs.md": configs,
    "error-texts.md": error_texts,
    "figures.md": figures,
    "incidents.md": causes,
    "tested-faults.md": lambda: reference(FAULTS),
    "xid.md": xids,
}


def updated(name: str, text: str) -> str:
    """A document with its table made again. Raises ValueError without a mark."""
    head, begin, rest = text.partition(BEGIN)
    if not begin:
        raise ValueError(f"{name} has no {BEGIN.strip()}")
    _, end, tail = rest.partition(END)
    return f"{head}{BEGIN}{TABLES[name]()}{end}{tail}"


def main() -> int:
    for name in TABLES:
        path = FOLDER / name
        path.write_text(updated(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
