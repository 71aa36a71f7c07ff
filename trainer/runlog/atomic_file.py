"""Files that appear whole: written beside their names (`part_of`), synced, renamed.

The writer holds a lock on the hidden file: one without a lock was left by a killed process.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.runlog import locks

SWEPT_S = 1.0  # that another writer of the name may take to remove the file of one without a lock


def sync(path: Path) -> None:
    """Put a file's data, or a folder's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: str) -> None:
    """Write a file that is on the disk afterwards; not atomic, for folders renamed later."""
    path.write_text(text)
    sync(path)


def sha256_of(path: Path, start: int = 0, lives: Callable[[], None] = lambda: None) -> str:
    """SHA-256 (hex) of a file from byte `start` on; calls `lives` for each piece read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(1 << 20):
            digest.update(block)
            lives()
    return digest.hexdigest()


@contextlib.contextmanager
def part_of(path: Path) -> Iterator[Path]:
    """A hidden file that is renamed to `path` at the end, or removed on failure. Raises OSError."""
    sweep(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(locks.NoLocks):
            held.callback(os.close, locks.take(part, SWEPT_S, 0o666))
        held.callback(part.unlink, missing_ok=True)
        yield part
        sync(part)  # a power cut leaves no empty file of that name
        part.replace(path)


def sweep(path: Path) -> None:
    """Remove hidden files of `path` that nobody is writing."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):  # gone meanwhile, being written, or no locks there
            descriptor = os.open(left, os.O_RDWR | os.O_CLOEXEC)
            try:
                if locks.hold(descriptor):
                    left.unlink()
            finally:
                os.close(descriptor)
