"""Calls of the C library that answer as a fault asks, in the programs that are started with `env`.

Namespaces have one clock for all, and no file system here is without locks: what programs read of the
clock, and what flock(2) says to them, is therefore simulated (inside/answers.c). Times that the kernel
stamps files with, and all waiting, are real.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent / "inside" / "answers.c"
COMPILES_S = 60.0


@cache
def why_not() -> str | None:
    """Why nothing can be compiled here."""
    return None if shutil.which("cc") else "there is no C compiler (cc)"


class Answers:
    """One clock, and folders without locks; `env` is for a head or a node. Needs `cc`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        library = folder / "answers.so"
        words = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(words, check=True, capture_output=True, timeout=COMPILES_S)
        self._clock = folder / "clock"
        self._clock.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library), "ANSWERS_CLOCK": str(self._clock)}

    def set_clock(self, by_s: int) -> None:
        """By so many seconds off the true time, at once, also for programs that run."""
        with self._clock.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", by_s))

    def without_locks(self, *folders: Path) -> dict[str, str]:
        """`env` in which flock fails with ENOLCK below these folders."""
        return {**self.env, "ANSWERS_NO_LOCKS": ":".join(map(str, folders))}
