"""JSON lines in the run directory: events.jsonl (what the head saw) and incidents.jsonl (why)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.payload.mask_secrets import hide

EVENTS_FILE = "events.jsonl"
INCIDENTS_FILE = "incidents.jsonl"


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line, written whole, so a reader never sees half of one. Raises `OSError`.

    Keys are only ever added. An incident has incident (its type), text, time_s (unix), step, and
    more by type.
    """
    line = json.dumps(record, default=str).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


class Journal:
    """The events of a launch, in order."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS_FILE

    def write(self, name: str, text: str, *, node: str | None = None, **data: Any) -> None:
        """Record one event, now. `text` is one sentence for people; secrets are masked.

        `mono_s` orders the events of one head and gives durations; `time_s` is for people.
        """
        event = {
            "event": name,
            "text": hide(text),
            "node": node,
            "mono_s": round(time.monotonic(), 3),
            "time_s": round(time.time(), 3),
            "data": _without_secrets(data),
        }
        try:
            append(self._path, event)
        except OSError:
            pass  # a full disk on the head must not keep it from stopping a run


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list | tuple) else value
