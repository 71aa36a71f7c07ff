"""Run directories, `outputs/NNN-<label>`, numbered in the order in which they are made."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"(\d{3,})-")


def next_run_dir(outputs: Path, label: str) -> Path:
    """The directory that `make_run_dir` would make now; makes nothing."""
    numbers = [0]
    if outputs.is_dir():
        numbers += [int(m[1]) for entry in outputs.iterdir() if (m := _NUMBER.match(entry.name))]
    return outputs / f"{max(numbers) + 1:03d}-{label}"


def make_run_dir(outputs: Path, label: str, mode: int = 0o777) -> Path:
    """Make the next free one in an existing folder. Raises OSError."""
    while True:
        path = next_run_dir(outputs, label)
        try:
            path.mkdir(mode)
        except FileExistsError:
            continue  # another run has just taken this number
        return path
