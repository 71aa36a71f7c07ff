"""How far the head has got in the nodes' files, for a supervisor that takes a run over.

What was copied after the last note is cut off and sent again, so no line is lost or doubled.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.runlog import run_files
from trainer.runlog.atomic_file import write_whole

FILE = ".positions.json"
EVERY_S = 1.0
_COPY = re.compile(r"ranks/\d+\.log|telemetry\.jsonl")
Positions = dict[str, dict[str, int]]  # bytes by node and file: "telemetry", or a rank's number


class Notes:
    """Writes the positions of an attempt down before more is copied: once a second at most, and
    before the first part of each file."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._noted_s = run_dir, 0.0
        self._copies: set[str] = set()

    def note(self, found: Mapping[str, Mapping[str, int]], copy: str | None) -> None:
        """`copy` is the file, relative to the run directory, that the head is about to write; None
        where it only reads."""
        now = time.monotonic()
        if now - self._noted_s < EVERY_S and (copy is None or copy in self._copies):
            return
        self._noted_s = now
        self._copies |= {copy} if copy else set()
        with suppress(OSError):  # a full disk must not end a run
            sizes = {name: self._size(name) for name in sorted(self._copies)}
            document = json.dumps({"positions": found, "sizes": sizes})
            write_whole(self._run_dir / FILE, document, 0o600, synced=False)

    def _size(self, name: str) -> int:
        try:
            return (self._run_dir / name).stat().st_size
        except FileNotFoundError:
            return 0


def load(run_dir: Path) -> Positions:
    """The positions noted last; the head's copies are cut to what they were then."""
    try:
        document = run_files.read_object(run_dir, FILE)
        found: Positions = {
            str(node): {str(name): int(at) for name, at in files.items()}
            for node, files in document["positions"].items()
        }
        for name, size in document["sizes"].items():
            if not _COPY.fullmatch(name):
                raise ValueError(name)
            with suppress(FileNotFoundError):
                _cut(run_dir, name, int(size))
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return {}


def _cut(run_dir: Path, name: str, size: int) -> None:
    """No link is followed: what it leads to must not be cut. Raises OSError."""
    with run_files.folder_below(run_dir, str(Path(name).parent)) as folder:
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(Path(name).name, flags, dir_fd=folder)
        try:
            if size < os.fstat(descriptor).st_size:  # it is cut, and never made longer
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def remove(run_dir: Path) -> None:
    (run_dir / FILE).unlink(missing_ok=True)
