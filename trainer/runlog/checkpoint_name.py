"""Checkpoints of a run directory: their names, `epoch{E}-global_step{G}`, and in which order they
were made. trainer.checkpoint.files writes them; this is standard library only."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from trainer.runlog import run_files

MANIFEST = "manifest.json"  # a checkpoint without it is not complete
LATEST = "latest"  # in the run directory: the name of the newest complete one
IN_TEXT = r"epoch\d{1,9}-global_step\d{1,18}"  # in words of a command, lines of a log
_NAME = re.compile(r"epoch(\d+)-global_step(\d+)")
# At the head of the manifest, so that one of thousands of files need not be read for it.
_SERIAL = re.compile(
    rb'\s{0,20}\{\s{0,20}"schema":\s{0,20}\d{1,9},\s{0,20}"serial":\s{0,20}(\d{1,15})\s{0,20},'
)
_HEAD_BYTES = 200


def checkpoint_name(epoch: int, step: int) -> str:
    return f"epoch{epoch}-global_step{step}"


def epoch_and_step(name: str) -> tuple[int, int] | None:
    """None for a name that is no checkpoint's."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def serial_of(manifest: Path) -> int:
    """The how manieth checkpoint of its run it is; 0: made before manifests said so. Raises
    OSError."""
    with run_files.opened(manifest) as (fd, _):
        found = _SERIAL.match(os.pread(fd, _HEAD_BYTES, 0))
    return int(found[1]) if found else 0


def complete_names(run_dir: Path) -> list[str]:
    """Complete checkpoints as they were made: a run that went back leaves older, higher numbers.
    Not by the times of files, which a copy or a restored backup changes: by their serial numbers;
    those without by time, as nothing else tells. The last one is that of `latest`, where it is
    there. `clusterctl/payload/launch/checkpoints.py` does the same on a node. Raises OSError."""
    found = []
    for path in run_dir.iterdir():
        if (counts := epoch_and_step(path.name)) is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                made_ns = (path / MANIFEST).stat().st_mtime_ns
                found.append((serial_of(path / MANIFEST), made_ns, counts[1], path.name))
    names = [name for *_, name in sorted(found)]
    with contextlib.suppress(OSError):
        with run_files.opened(run_dir / LATEST) as (fd, _):
            newest = os.pread(fd, _HEAD_BYTES, 0).decode(errors="replace").strip()
        if newest in names:
            names.remove(newest)
            names.append(newest)
    return names
