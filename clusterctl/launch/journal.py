"""Files of the run directory that the head appends to: events, incidents, logs of some nodes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.launch.state import RunState
from clusterctl.payload.secrets.mask import hide, hide_in
from clusterctl.runs.appended import Appended
from trainer.runlog import telemetry

EVENTS_FILE = "events.jsonl"
INCIDENTS_FILE = "incidents.jsonl"
# payload/agent.py sends 256 kB a second of each rank's log, as text up to four times that, and at
# the end once more 1 MiB.
BYTES_S, BURST_BYTES = 1 << 20, 8 << 20
NODE_BYTES = 16 << 30  # of all copies of one node: weeks of logs, and less than a disk


class Journal:
    def __init__(self, run_dir: Path, known: Collection[tuple[str, str | None, str]] = ()) -> None:
        """`known`: (event, node, text) of events that are on record; they are not written again."""
        self._files, self._known = Appended(run_dir), set(known)

    def write(self, name: str, text: str, *, node: str | None = None, **data: Any) -> None:
        """Record one event, now. `text` is one sentence for people; secrets are masked.

        `mono_s` orders the events of one head and gives durations; `time_s` is for people.
        """
        if (name, node, hide(text)) in self._known:
            return
        mono_s, time_s = round(time.monotonic(), 3), round(time.time(), 3)
        event: dict[str, Any] = {"event": name, "text": hide(text), "node": node}
        event |= {"mono_s": mono_s, "time_s": time_s, "data": hide_in(data)}
        self._files.add(EVENTS_FILE, _line(event))
        for file, count in self._files.left_out().items():
            self.write("cut", f"{file}: {count} bytes are left out: its disk was full for too long")

    def add(self, name: str, data: bytes) -> None:
        """Add to another file of the run directory, once its disk has room; raises nothing: a full
        disk on the head must not keep it from stopping a run."""
        if why := self._files.add(name, data):
            self.write("error", f"{name}: {why}; it is written once it can be")

    def record(self, name: str, record: Mapping[str, Any]) -> None:
        """As `add`, one line of JSON. Keys are only ever added."""
        self.add(name, _line(record))

    def settle(self, within_s: float) -> str:
        """Before this process ends: wait for room so long; why not all is written, or ""."""
        deadline = time.monotonic() + within_s
        while (why := self._files.flush()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return why

    @property
    def is_behind(self) -> bool:
        """Whether something is kept here that is in no file yet."""
        return self._files.is_behind


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, default=str).encode() + b"\n"


def tell(journal: Journal, state: RunState, name: str, text: str, **data: Any) -> None:
    """Record one event, and keep it among the last ones of the state."""
    journal.write(name, text, **data)
    state.add(telemetry.Event(name, text, data, time_s=time.time()))


@dataclass(slots=True)
class _File:
    allowance: float
    at_s: float
    cut_bytes: int = 0  # not yet noted in the file
    reported: str = ""  # what the journal says was cut


class Copies:
    """Logs and telemetry of nodes without the shared run directory; a flood is cut."""

    def __init__(self, run_dir: Path, journal: Journal) -> None:
        self._run_dir, self._journal = run_dir, journal
        self._files: dict[str, _File] = {}
        self._bytes: Counter[str] = Counter()  # that each node has sent, also to an earlier head

    def append(self, name: str, text: str, node: str) -> None:
        """Add what `node` sent for the file `name`."""
        now = time.monotonic()
        if name not in self._files:
            self._files[name] = _File(BURST_BYTES, now)
            with suppress(OSError):
                self._bytes[node] += (self._run_dir / name).stat().st_size
        file = self._files[name]
        file.allowance = min(BURST_BYTES, file.allowance + BYTES_S * (now - file.at_s))
        file.at_s = now
        capacity = max(0, min(int(file.allowance), NODE_BYTES - self._bytes[node]))
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > capacity:
            file.cut_bytes += len(data) - capacity
            data = data[:capacity]
            is_all = self._bytes[node] + capacity >= NODE_BYTES
            most = f"more than {units.size(NODE_BYTES)}; the rest is there only"
            why = f"{name}: {node} sends {most if is_all else 'too much'}"
            if why != file.reported:
                file.reported = why
                self._journal.write("cut", why, node=node)
        elif file.cut_bytes:
            note = f"[{file.cut_bytes} bytes of {node} were too many and are not here]\n"
            data = note.encode() + data
            file.cut_bytes = 0
        file.allowance -= len(data)
        self._bytes[node] += len(data)
        if data:
            self._journal.add(name, data)
