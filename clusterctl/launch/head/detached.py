"""A process of its own that outlives the terminal: how supervisors and servers are started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainer.runlog.own_modules import environment

TAIL_CHARS = 2000


def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it with its output at the end of `log`. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o640)
    with os.fdopen(descriptor, "wb") as out:
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
    said = log.read_text(errors="replace")[-TAIL_CHARS:].strip()
    return said.splitlines()[-1].removeprefix("error: ") if said else f"nothing in {log.name}"
