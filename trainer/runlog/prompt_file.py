"""A file of prompts: one on each line."""

from __future__ import annotations

from pathlib import Path


def prompt_lines(path: Path) -> list[str]:
    """Without spaces at their ends; a blank line is "". Raises OSError and UnicodeDecodeError."""
    # utf-8-sig: editors put a mark in front. Not splitlines: a prompt can have a U+2028.
    text = path.read_text(encoding="utf-8-sig").removesuffix("\n")
    return [line.strip() for line in text.split("\n")]
