"""Sections of an envelope, and the one way to their text.

A parser that reads `Section.out` itself can take half an answer for all. `text_of` gives the text
only where all of it is there; a parser that can use part of an answer does so with a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from checks.facts import NOT_ASKED, Maybe, Section, Unknown, then

Sections = Mapping[str, Section]
T = TypeVar("T")


def text_of(section: Section | None, *, any_exit: bool = False) -> Maybe[str]:
    """All the text of a section; Unknown where it is lacking, late, failed, cut or empty.

    `any_exit` is for tools that print a result and then exit with an error: any exit status is
    taken, but no end by a signal.
    """
    if section is None:
        return NOT_ASKED
    good_exit = section.rc == 0 or (any_exit and section.rc is not None and section.rc > 0)
    if section.state != "ended" or not good_exit or section.truncated or not section.out.strip():
        return Unknown(section.why_not)
    return section.out


def parsed(
    section: Section | None, read: Callable[[str], Maybe[T]], *, any_exit: bool = False
) -> Maybe[T]:
    """What `read` makes of the text of a section, see `text_of`."""
    return then(text_of(section, any_exit=any_exit), read)


def rows_of(text: str, *counts: int) -> list[list[str]]:
    """Cells of the lines of a text, cut at tabs; with `counts` lines of so many cells only."""
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    return [cells for cells in rows if not counts or len(cells) in counts]


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "empty")


def unreadable(line: str) -> Unknown:
    """For a line that is none of those that the section may have."""
    return Unknown(f"cannot read {line.strip()[:80]!r}")


def read_sections(envelope: Mapping[str, Any]) -> dict[str, Section]:
    """The sections of an envelope; who received it has checked its shape."""
    return {key: Section(**data) for key, data in envelope["sections"].items()}


def sections_of(sections: Sections, prefix: str) -> Sections:
    """The sections whose name begins with a prefix, by the rest of it."""
    return {
        key.removeprefix(prefix): one for key, one in sections.items() if key.startswith(prefix)
    }
