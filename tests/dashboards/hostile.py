"""Samples in which every text that a node or a run gives tries to command the terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

# Window title, clipboard, cleared screen, markup, direction of text, another line, no character.
ESCAPES = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\x9b31m[/x][red]\u202e\nFAIL forged\r\ud800"
KEPT = {"node", "kind", "severity", "phase", "record", "planned", "nodes", "source"}


def hostile(value: Any) -> Any:
    """The same with ESCAPES behind every text, but for what the head itself says."""
    if isinstance(value, str):
        return value + ESCAPES
    if isinstance(value, tuple):
        return tuple(map(hostile, value))
    if isinstance(value, dict):
        return {key: hostile(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            item.name: hostile(getattr(value, item.name))
            for item in dataclasses.fields(value)
            if item.init and (item.name not in KEPT or item.name == "record")
        }
        return dataclasses.replace(value, **parts)
    return value


def obeyed(text: str) -> list[str]:
    """What of the escapes a terminal would obey in this text."""
    signs = ("\x1b]0;owned", "\x1b]52;c;b3du", "\x9b31m", "\u202e", "\nFAIL forged", "\ud800")
    return [sign for sign in signs if sign in text]
