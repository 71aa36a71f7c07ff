"""Files that appear whole: written beside their names (`part_of`), synced, renamed.

The writer holds a lock on the hidden file: one without a lock was left by a killed process.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.runlog import locks, run_files

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
def part_of(path: Path, mode: int | None = None, *, synced: bool = True) -> Iterator[Path]:
    """A hidden file that is renamed to `path` at the end, or removed on failure. With `mode` it
    is closed to others until it has those bits; else the umask decides. Raises OSError.

    Root could put a file in the place of /dev/null: only plain files are replaced.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # a folder refuses by itself
        raise run_files.Refused(path, "it is no plain file")
    sweep(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(locks.NoLocks):
            held.callback(os.close, locks.take(part, SWEPT_S, 0o666 if mode is None else 0o600))
        held.callback(part.unlink, missing_ok=True)
        yield part
        if mode is not None:
            part.chmod(mode)
        if synced:
            sync(part)  # a power cut leaves no empty file of that name
        part.replace(path)


def write_whole(
    path: Path, data: bytes | str, mode: int | None = None, *, synced: bool = True
) -> None:
    """As `part_of`; readers see old or new. Raises OSError."""
    with part_of(path, mode, synced=synced) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


def swap(path: Path, text: str) -> None:
    """For the only writer of a file, many times a second: not locked or synced. Raises OSError."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def put_in_place(part: Path, path: Path) -> None:
    """Give a finished file or folder its name. Raises OSError; `path` is then as it was.

    No folder can be renamed over a full one: that goes aside for a moment.
    """
    if not part.is_dir() and not path.is_dir():
        part.replace(path)
        return
    aside, is_there = path.with_name(f".old-{path.name}"), path.exists()
    if is_there:
        remove(aside)
        path.rename(aside)
    try:
        part.rename(path)
    except BaseException:
        if is_there:
            aside.rename(path)
        raise
    remove(aside)


def remove(path: Path) -> None:
    """A file, or a folder with all in it, if it exists. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
