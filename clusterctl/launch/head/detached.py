"""A process of its own that outlives the terminal: how supervisors and servers are started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainer.runlog import run_files
from trainer.runlog.own_modules import environment

TAIL_BYTES = 2000


def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it with its output at the end of `log`, a plain file. Raises OSError."""
    with os.fdopen(run_files.open_to_append(log, 0o640), "wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=environment(),
        )


def last_words(log: Path) -> str:
    """What it said last, for the sentence about its end."""
    data, _ = run_files.read_end(log.parent, log.name, TAIL_BYTES)
    said = data.decode(errors="replace").strip()
    return said.splitlines()[-1].removeprefix("error: ") if said else f"nothing in {log.name}"
