"""Files that appear whole: written beside their names (`part_of`), synced, renamed.

The writer holds a lock on the hidden file: one without a lock was left by a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path


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
    descriptor = _locked(part)
    try:
        yield part
        sync(part)  # a power cut leaves no empty file of that name
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        os.close(descriptor)


def sweep(path: Path) -> None:
    """Remove hidden files of `path` that nobody is writing."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):  # gone meanwhile, being written, or no locks there
            descriptor = os.open(left, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(descriptor)


def _locked(part: Path) -> int:
    """The new file's descriptor, with its lock where the file system has locks."""
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), part.stat()):
                return descriptor
        os.close(descriptor)  # swept between the two lines above
