"""The table of all config keys, made from the dataclasses and their comments.

python -m trainer.config.docs --write docs/reference/configs.md    # a test compares the file
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config.load import (
    Config,
    DatasetConfig,
    ModelConfig,
    SampleConfig,
    SchedulerConfig,
    TextEncoderConfig,
    VaeConfig,
)
from trainer.config.type_names import REFUSED, TYPES
from trainer.config.values import allowed
from trainer.models.stdit_config import STDiT3Config

BEGIN, END = "<!-- keys: python -m trainer.config.docs -->", "<!-- end of keys -->"
# Prefix of the keys, their dataclass, heading.
SECTIONS: tuple[tuple[str, Any, str], ...] = (
    ("", Config, "The run"),
    ("dataset.", DatasetConfig, "dataset"),
    ("model.", ModelConfig, "model"),
    ("model.", STDiT3Config, "model: the network's own numbers"),
    ("vae.", VaeConfig, "vae"),
    ("text_encoder.", TextEncoderConfig, "text_encoder"),
    ("scheduler.", SchedulerConfig, "scheduler"),
    ("sample.", SampleConfig, "sample"),
)


def comments_of(cls: type) -> dict[str, str]:
    """Field -> the comment beside it, else the one on the lines above."""
    source = textwrap.dedent(inspect.getsource(cls))
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    alone = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.lstrip().startswith("#")
    }

    def above(line: int) -> str:
        first = line
        while first - 1 in alone:
            first -= 1
        return " ".join(by_line[number] for number in range(first, line))

    def beside(node: ast.AnnAssign) -> str:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return " ".join(by_line[number] for number in lines if number in by_line)

    return {
        node.target.id: beside(node) or above(node.lineno)
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def rows(prefix: str, cls: Any) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default, what it means; sections inside are not rows of their own."""
    comments = comments_of(cls)
    for field in dataclasses.fields(cls):
        if not field.metadata.get("settable", True) or str(field.type).endswith("Config"):
            continue
        yield f"{prefix}{field.name}", _kind(field), _default(field), comments[field.name]


def _kind(field: dataclasses.Field[Any]) -> str:
    rule = allowed(field)
    return f"{field.type}, {rule}" if rule else str(field.type)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"


def table() -> str:
    """All keys as Markdown, then what other spellings and refused keys there are."""
    lines: list[str] = []
    for prefix, cls, heading in SECTIONS:
        lines += [f"### {heading}", "", f"{(cls.__doc__ or '').splitlines()[0]}", ""]
        lines += ["| key | type | default | |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{key}` | {_cell(kind)} | `{default}` | {_cell(comment)} |"
            for key, kind, default, comment in rows(prefix, cls)
        ]
        lines.append("")
    lines += _words("Other spellings that are understood", "aliases", "means")
    lines += _words("Keys of published files that need nothing here", "harmless", "why")
    lines += _words("Keys that are refused", "refused", "why")
    lines += _types()
    return "\n".join(lines).rstrip() + "\n"


def _words(heading: str, attribute: str, column: str) -> list[str]:
    lines = [f"### {heading}", "", f"| key | {column} |", "| --- | --- |"]
    for prefix, cls, _ in SECTIONS:
        found: Mapping[str, str] = getattr(cls, attribute, {})
        for key, text in found.items():
            lines.append(
                f"| `{prefix}{key}` | {f'`{text}`' if attribute == 'aliases' else _cell(text)} |"
            )
    return [*lines, ""]


def _types() -> list[str]:
    lines = ["### Type names", "", "| section | `type` in a file | here |", "| --- | --- | --- |"]
    for section, names in TYPES.items():
        lines += [f"| {section} | `{name}` | `{ours}` |" for name, ours in names.items()]
        refused = REFUSED.get(section, {})
        lines += [
            f"| {section} | `{name}` | refused: {_cell(why)} |" for name, why in refused.items()
        ]
    return [*lines, ""]


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
    parser = argparse.ArgumentParser(
        prog="python -m trainer.config.docs", description="Print the table of all config keys."
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put it into this document")
    path: Path | None = parser.parse_args(argv).write
    if path is None:
        print(table(), end="")
    else:
        path.write_text(updated(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
