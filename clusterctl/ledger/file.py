"""Reads the ledger of a cluster and appends to it, so that two writers lose nothing.

A line is written whole or, where the machine stops in between, torn: the next writer begins a new
line, and readers leave a torn one out and count it. Beyond 4 MiB, lines older than 400 days go, and
then the oldest ones, until it has half of that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import CouldNotFindOut
from clusterctl.hostfile import locked
from clusterctl.ledger.entries import Entry, entry_of
from trainer.runlog.atomic_file import write_whole

MAX_BYTES = 4 << 20
KEPT_S = 400 * 86400.0
TRIES, BETWEEN_TRIES_S = 4, 0.05  # at a last line without an end


class LedgerError(CouldNotFindOut):
    """The ledger cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Entries in order of time. `skipped` lines were torn or of another version."""

    entries: tuple[Entry, ...] = ()
    skipped: int = 0


def read(path: Path) -> Ledger:
    """Empty without a file. Raises `LedgerError`."""
    entries, skipped = [], 0
    with _opened(path, os.O_RDONLY) as descriptor:
        for line in _lines(descriptor, path) if descriptor is not None else ():
            entry = entry_of(line)
            if entry is None:
                skipped += 1
            else:
                entries.append(entry)
    return Ledger(tuple(sorted(entries, key=lambda one: one.time_s)), skipped)


def append(path: Path, entries: Sequence[Entry], *, hostfile: Path | None = None) -> None:
    """Write these entries, on the disk when it returns. Raises `LedgerError`.

    A new file has the mode of `hostfile`: who may read that may read this.
    """
    if not entries:
        return
    data = b"".join(entry.line() for entry in entries)
    mode = 0o644
    with contextlib.suppress(OSError):
        mode = 0o666 & (hostfile or path).stat().st_mode
    with locked(path, LedgerError) as is_held:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        is_new = not path.exists()
        with _opened(path, flags, mode) as descriptor:
            assert descriptor is not None
            try:
                if is_new:
                    os.fchmod(descriptor, mode)
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b"\n" + data
                written = os.write(descriptor, data)
                os.fsync(descriptor)
            except OSError as error:
                raise LedgerError(f"{path} was not changed: {error.strerror}") from None
            if written < len(data):
                raise LedgerError(f"{path} lacks its last lines: the disk is full")
            if is_held and size + written > MAX_BYTES:
                _shorten(path, descriptor, max(one.time_s for one in entries))


def _shorten(path: Path, descriptor: int, now_s: float) -> None:
    """Keep the newest lines, also those of other versions; only under the lock."""
    kept: list[bytes] = []
    for line in _lines(descriptor, path):
        entry = entry_of(line)
        if entry is None or entry.time_s > now_s - KEPT_S:
            kept.append(line)
    size = sum(len(line) + 1 for line in kept)
    first = 0
    while size > MAX_BYTES // 2:
        size -= len(kept[first]) + 1
        first += 1
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        write_whole(path, b"".join(line + b"\n" for line in kept[first:]), mode)
    except OSError as error:
        raise LedgerError(f"{path} cannot be made shorter: {error.strerror}") from None


@contextlib.contextmanager
def _opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int | None]:
    """A plain file; None where it is not there and not made. Raises `LedgerError`."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except (FileNotFoundError, NotADirectoryError):
        if flags & os.O_CREAT:
            raise LedgerError(f"{path} cannot be written: there is no such folder") from None
        yield None
        return
    except OSError as error:
        word = "written" if flags & os.O_CREAT else "read"
        text = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise LedgerError(f"{path} cannot be {word}: {text}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LedgerError(f"{path} cannot be used: it is a folder or a device")
        yield descriptor
    finally:
        os.close(descriptor)


def _lines(descriptor: int, path: Path) -> Iterator[bytes]:
    """Lines that are not empty; of a file that somebody made longer, the last 5 MiB."""
    for left in reversed(range(TRIES)):
        size = os.fstat(descriptor).st_size
        begin = max(0, size - MAX_BYTES - (1 << 20))
        try:
            data = os.pread(descriptor, size - begin, begin)
        except OSError as error:
            raise LedgerError(f"{path} cannot be read: {error.strerror}") from None
        if not left or not data or data.endswith(b"\n"):
            break
        time.sleep(BETWEEN_TRIES_S)  # torn, or half of it written: that takes no such time
    lines = data.split(b"\n")[1 if begin else 0 :]
    yield from (line for line in lines if line.strip())
