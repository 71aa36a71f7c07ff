"""Logs and telemetry of nodes that do not share the run directory, appended to it on the head.

Output beyond what an agent sends is cut, and the file and the journal say so. A head whose disk is
full goes on without copies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from clusterctl.launch.journal import Journal

# payload/agent.py sends 256 kB a second of each rank's log, as text up to four times that, and at
# the end once more 1 MiB.
BYTES_S, BURST_BYTES = 1 << 20, 8 << 20


@dataclass(slots=True)
class _File:
    allowance: float
    at_s: float
    cut_bytes: int = 0  # not yet noted in the file
    is_reported: bool = False  # the journal says that something was cut


class Copies:
    """Appends to files of one run directory."""

    def __init__(self, run_dir: Path, journal: Journal) -> None:
        self._run_dir, self._journal = run_dir, journal
        self._files: dict[str, _File] = {}
        self._is_full = False

    def append(self, name: str, text: str, node: str) -> None:
        """Add what `node` sent for the file `name`. An `OSError` is recorded once, not raised."""
        now = time.monotonic()
        file = self._files.setdefault(name, _File(BURST_BYTES, now))
        file.allowance = min(BURST_BYTES, file.allowance + BYTES_S * (now - file.at_s))
        file.at_s = now
        data = text.encode("utf-8", "backslashreplace")
        capacity = int(file.allowance)
        if len(data) > capacity:
            file.cut_bytes += len(data) - capacity
            data = data[:capacity]
            if not file.is_reported:
                file.is_reported = True
                self._journal.write(
                    "cut", f"{name}: {node} sends more than an agent does", node=node
                )
        elif file.cut_bytes:
            note = f"[{file.cut_bytes} bytes of {node} were too many and are not here]\n"
            data = note.encode() + data
            file.cut_bytes = 0
        file.allowance -= len(data)
        if not data:
            return
        try:
            with (self._run_dir / name).open("ab") as target:
                target.write(data)
        except OSError as error:
            if not self._is_full:
                self._is_full = True  # the head's disk is no reason to end a run
                self._journal.write("error", f"{name}: {error}")
