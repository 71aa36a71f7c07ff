"""incidents.jsonl of the run directory: what went wrong with a run, and the cause."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "incidents.jsonl"


def record(run_dir: Path, incident: Mapping[str, Any]) -> None:
    """Append one incident as a line that is written whole. Raises OSError.

    Keys are only ever added: incident (its kind), text, time_s (unix), step, and by kind more.
    """
    line = json.dumps(incident, default=str).encode() + b"\n"
    descriptor = os.open(run_dir / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All incidents, oldest first; none when there is no file. A torn last line is left out."""
    try:
        text = (run_dir / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
