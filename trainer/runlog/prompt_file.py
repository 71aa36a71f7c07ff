"""A file of prompts: one on each line."""

from __future__ import annotations

import io
from pathlib import Path

from trainer.runlog.run_files import read_chosen

MOST_BYTES = 256 << 20  # a million long prompts


def prompt_lines(path: Path) -> list[str]:
    """Without spaces at their ends; a blank line is "". Raises OSError and UnicodeDecodeError."""
    return lines_of(read_chosen(path, MOST_BYTES))


def lines_of(data: bytes) -> list[str]:
    """The same of what was read. Raises UnicodeDecodeError."""
    # utf-8-sig: editors put a mark in front. Not splitlines: a prompt can have a U+2028.
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def is_elsewhere(path: Path, run_dir: Path) -> bool:
    """Whether a run's config names prompts outside of the run and of the current folder.

    It may be somebody else's: it must not show any file of this user's as prompts.
    """
    found = path.resolve()
    return not any(found.is_relative_to(one.resolve()) for one in (run_dir, Path.cwd()))
