"""What happened to a launch, in order, as the head saw it: events.jsonl of the run directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.payload.mask_secrets import hide

FILE = "events.jsonl"


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One line. `mono_s` orders events of one head and gives durations; `time_s` is for people."""

    name: str
    text: str
    node: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    mono_s: float = 0.0
    time_s: float = 0.0


class Journal:
    """Appends events; a line is written whole, so a reader never sees half of one."""

    error: OSError | None = None  # why the last lines are missing

    def __init__(self, run_dir: Path) -> None:
        self._fd = os.open(run_dir / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, name: str, text: str, *, node: str | None = None, **data: Any) -> JournalEvent:
        """Record one event, now. `text` is one sentence for people, without secrets."""
        event = JournalEvent(
            name, hide(text), node, _without_secrets(data), time.monotonic(), time.time()
        )
        line = {
            "event": event.name,
            "text": event.text,
            "node": event.node,
            "mono_s": round(event.mono_s, 3),
            "time_s": round(event.time_s, 3),
            "data": event.data,
        }
        try:
            os.write(self._fd, json.dumps(line, default=str).encode() + b"\n")
        except OSError as error:
            self.error = error  # a full disk on the head must not keep it from stopping a run
        return event

    def close(self) -> None:
        os.close(self._fd)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def read(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a journal; none when there is no journal. A torn last line is left out."""
    try:
        text = (run_dir / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
