"""The table of all config keys (--write docs/reference/configs.md), of dataclasses' comments."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.allowed_values import allowed
from trainer.config import keys
from trainer.config.upstream import REFUSED, TYPES
from trainer.models.stdit_config import STDiT3Config

BEGIN, END = "<!-- keys: python -m trainer.config.docs -->", "<!-- end of keys -->"
# Prefix of the keys, their dataclass, heading.
SECTIONS: tuple[tuple[str, Any, str], ...] = (
    ("", keys.Config, "The run"),
    ("dataset.", keys.DatasetConfig, "dataset"),
    ("model.", keys.ModelConfig, "model"),
    ("model.", STDiT3Config, "model: the network's own numbers"),
    ("vae.", keys.VaeConfig, "vae"),
    ("text_encoder.", keys.TextEncoderConfig, "text_encoder"),
    ("scheduler.", keys.SchedulerConfig, "scheduler"),
    ("sample.", keys.SampleConfig, "sample"),
)
_FIELD = re.compile(r"(\w+): .*?(?:  # (.*))?$")  # one line; name and comment


def comments_of(cls: type) -> dict[str, str]:
    """Field -> the comment beside it, else the line above."""
    found, above = {}, ""
    for line in map(str.strip, inspect.getsource(cls).splitlines()):
        if match := _FIELD.match(line):
            found[match[1]] = match[2] or above
        above = line[2:] if line.startswith("# ") else ""
    return found


def rows(prefix: str, cls: Any) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default, what it means; sections inside are not rows of their own."""
    comments = comments_of(cls)
    for field in dataclasses.fields(cls):
        if not field.metadata.get("settable", True) or str(field.type).endswith("Config"):
            continue
        rule = allowed(field)
        kind = f"{field.type}, {rule.words}" if rule else str(field.type)
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        yield f"{prefix}{field.name}", kind, repr(default), comments[field.name]


def table() -> str:
    """All keys as Markdown, then what other spellings and refused keys there are."""
    lines: list[str] = []
    for prefix, cls, heading in SECTIONS:
        lines += [f"### {heading}", "", f"{(cls.__doc__ or '').splitlines()[0]}", ""]
        lines += ["| key | type | default | |", "| --- | --- | --- | --- |"]
        for key, kind, default, comment in rows(prefix, cls):
            lines.append(f"| `{key}` | {_cell(kind)} | `{default}` | {_cell(comment)} |")
        lines.append("")
    lines += _keys("Other spellings that are understood", "aliases", "means")
    lines += _keys("Keys of published files that need nothing here", "harmless", "why")
    lines += _keys("Keys that are refused", "refused", "why")
    lines += ["### Type names", "", "| section | `type` in a file | here |", "| --- | --- | --- |"]
    for section, names in TYPES.items():
        lines += [f"| {section} | `{name}` | `{ours}` |" for name, ours in names.items()]
        for name, why in REFUSED[section].items():
            lines.append(f"| {section} | `{name}` | refused: {_cell(why)} |")
    return "\n".join(lines) + "\n"


def _keys(heading: str, attribute: str, column: str) -> Iterator[str]:
    yield from [f"### {heading}", "", f"| key | {column} |", "| --- | --- |"]
    for prefix, cls, _ in SECTIONS:
        for key, text in getattr(cls, attribute, {}).items():
            shown = f"`{text}`" if attribute == "aliases" else _cell(text)
            yield f"| `{prefix}{key}` | {shown} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def updated(document: str) -> str:
    """The document with a new table between the two marks. Raises ValueError without marks."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n\n{table()}\n{END}{tail}"


def main(argv: Sequence[str]) -> int:
    prog, description = "python -m trainer.config.docs", "Print the table of all config keys."
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it into this document")
    path: Path | None = parser.parse_args(argv).write
    if path is None:
        print(table(), end="")
    else:
        path.write_text(updated(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
