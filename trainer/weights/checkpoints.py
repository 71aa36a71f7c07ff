"""Which checkpoints of a run are complete, and which one a path means.

`epoch{E}-global_step{G}/` is complete when it has a manifest; `latest` in the run directory names
the newest one. trainer.checkpoint.files writes them.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from trainer.errors import CheckpointError, PathError

MANIFEST = "manifest.json"
LATEST = "latest"
MODEL, EMA, OPTIMIZER = "model", "ema", "optimizer"  # folders of a checkpoint
_NAME = re.compile(r"epoch(\d+)-global_step(\d+)")


def complete(run_dir: Path) -> list[Path]:
    """Complete ones as they were made: a run that went back leaves older, higher numbers."""
    found = []
    for path in run_dir.iterdir():
        if match := _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(((path / MANIFEST).stat().st_mtime_ns, int(match[2]), path))
    return [path for _, _, path in sorted(found)]


def step_of(checkpoint: Path) -> int:
    """The step in the name of a complete checkpoint's folder."""
    return int(checkpoint.name.rpartition("step")[2])


def counts_of(place: str) -> tuple[int | None, int | None]:
    """Step and epoch in the name of a checkpoint's folder; None for other weights."""
    match = _NAME.fullmatch(Path(place).name)
    return (int(match[2]), int(match[1])) if match else (None, None)


def find(path: Path) -> Path:
    """The checkpoint at a path: itself, or the one that a run directory's `latest` names."""
    path = path.absolute()
    if (path / MANIFEST).is_file():
        return path
    if not path.is_dir():
        raise PathError(f"there is no checkpoint at {path}")
    if _NAME.fullmatch(path.name):
        raise CheckpointError(f"{path} is not complete: it has no {MANIFEST}", hint=others(path))
    if not (found := complete(path)):
        raise CheckpointError(f"{path} holds no complete checkpoint")
    pointer = path / LATEST
    name = pointer.read_text(errors="replace").strip() if pointer.is_file() else ""
    return next((known for known in found if known.name == name), found[-1])


def others(path: Path) -> str:
    """A hint for a checkpoint that cannot be used."""
    found = [other for other in complete(path.parent) if other != path]
    return f"the newest other checkpoint is {found[-1]}" if found else "there is no other one"
