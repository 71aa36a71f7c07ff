"""Lines of reports for people, 80 columns wide: texts wrapped behind labels, or cut. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from trainer.runlog.output import printable

WIDTH = 80
LABEL = 10  # columns of a label
Line = tuple[str, str | None]  # text and style


def wrapped(text: str, width: int = WIDTH, start: str = "", indent: str | None = None) -> list[str]:
    """At least one line of at most `width`, broken between words; a longer word is broken too.

    The first begins with `start`, all others with `indent`, which is as wide as `start` by default.
    A width of 0 is no limit.
    """
    if not width:
        return [start + text]
    after = " " * len(start) if indent is None else indent
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
    ) or [start]


def labelled(label: str, text: str, style: str | None = None) -> Iterator[Line]:
    """The text behind its label, all lines in one style."""
    for line in wrapped(printable(text), start=f"{label:<{LABEL}}"):
        yield line, style


def cut(text: str, width: int) -> str:
    """The text, or its begin and "…" where it has more than `width` columns; 0 is no limit."""
    return text if not width or len(text) <= width else f"{text[: max(0, width - 1)]}…"
