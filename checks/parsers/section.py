"""Sections of an envelope, and the one way to their text.

A parser that reads `Section.out` itself can take half an answer for all. `text_of` gives the
text only where all of it is there; whoever can use part of an answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from checks.facts import NOT_ASKED, Maybe, Section, Unknown

Sections = Mapping[str, Section]


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


def rows_of(text: str) -> list[list[str]]:
    """Cells of the lines of a text, cut at tabs."""
    return [line.split("\t") for line in text.splitlines() if line.strip()]


def unreadable(line: str) -> Unknown:
    """For a line that is none of those that the section may have."""
    return Unknown(f"cannot read {line.strip()[:80]!r}")


def read_sections(envelope: Mapping[str, Any]) -> dict[str, Section]:
    """The sections of an envelope; what is no section becomes one with state "error"."""
    raw = envelope.get("sections")
    found = {}
    for key, data in (raw if isinstance(raw, dict) else {}).items():
        try:
            found[str(key)] = Section(
                state=_state(data["state"]),
                rc=_exit_status(data["rc"]),
                out=str(data["out"]),
                err=str(data["err"]),
                seconds=_seconds(data["seconds"]),
                truncated=data.get("truncated") is True,
            )
        except (TypeError, KeyError, ValueError, AttributeError):
            found[str(key)] = Section("error", None, "", "not a section", 0.0)
    return found


def _state(word: Any) -> Literal["ended", "missing", "timeout", "error"]:
    if word not in ("ended", "missing", "timeout", "error"):
        raise ValueError("no state")
    return word  # type: ignore[no-any-return]


def _exit_status(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError("no exit status")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError("no number of seconds")
    return seconds
