"""How the files of a run directory are opened: it may be an unpacked copy of somebody else's run,
or a folder into which others write.

Only plain files are read: no link is followed, no device is opened and no pipe is waited for. Lines
and objects of JSON have a longest size. Every reader of a run directory opens its files here. Files
that a user names are read with `read_chosen`: there a link or a pipe is the user's own choice.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from trainer.runlog import units
from trainer.runlog.json_file import parse_object

PIECE_BYTES = 1 << 20  # of a file, which may be of weeks
LONGEST_LINE = 1 << 20  # bytes; an event with the names of 4,096 nodes has a tenth of it
MOST_BYTES = 16 << 20  # of a file that is read whole; the plan of 1,000 nodes has 0.3 MB
MOST_PROMPT_BYTES = 256 << 20  # a million long prompts
WAIT_S = 10.0  # for the writer of a pipe that a user names
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refused(OSError):
    """A file that exists and is not read; `strerror` says what it is."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@contextlib.contextmanager
def opened(
    path: Path, owners: Collection[int] | None = None, folder_fd: int | None = None
) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor and the status of a plain file, of one of these users if given.

    With `folder_fd` the path's name is opened there. Raises `OSError`, `Refused`.
    """
    name = str(path) if folder_fd is None else path.name
    try:
        before = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if not stat.S_ISREG(before.st_mode):  # before it is opened: that alone can move a tape
            raise Refused(path, _kind(before.st_mode))
        fd = os.open(name, _FILE, dir_fd=folder_fd)
    except Refused:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(path, "it is no plain file")
        if owners is not None and found.st_uid not in owners:
            raise Refused(path, f"it belongs to user {found.st_uid}, who does not own the run")
        yield fd, found
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_below(
    folder: Path, name: str, owners: Collection[int] | None = None
) -> Iterator[tuple[int, os.stat_result]]:
    """As `opened`, of a file in the folder or deeper: no part of `name` leads out of it."""
    with (
        folder_below(folder, str(Path(name).parent)) as place,
        opened(folder / name, owners, place) as found,
    ):
        yield found


@contextlib.contextmanager
def folder_below(folder: Path, name: str = "") -> Iterator[int]:
    """A descriptor of the folder, or of one in it that no link leads to. Raises `OSError`."""
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts:
        raise Refused(name, f"it is outside of {folder}")
    with contextlib.ExitStack() as stack:
        place = os.open(folder, _FOLDER)
        stack.callback(os.close, place)
        for part in parts:
            try:
                place = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
            except NotADirectoryError:
                raise Refused(folder / name, "it is a link or no folder") from None
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(folder / name)) from None
            stack.callback(os.close, place)
        yield place


def open_to_append(path: Path, mode: int = 0o644) -> int:
    """A descriptor of a plain file, made where it is missing. Raises `OSError`, `Refused`."""
    return open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)


def open_plain(path: Path, flags: int, mode: int) -> int:
    """A descriptor of a plain file to write: no link is followed, and no reader of a pipe waited
    for. Raises `OSError`, `Refused`."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(found := os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused(path, _kind(found))
    return fd


def read_bytes(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """All of a file of a run directory. Raises `OSError`, `Refused` for a larger one."""
    with opened_below(folder, name) as (fd, status):
        if status.st_size > most:
            raise Refused(folder / name, f"it has more than {most:,} bytes")
        data = b""
        while len(data) <= most and (piece := os.read(fd, most + 1 - len(data))):
            data += piece
        return data


def read_end(folder: Path, name: str, most: int) -> tuple[bytes, bool]:
    """The last bytes of a file, and whether more is before them. Raises `OSError`."""
    with opened_below(folder, name) as (fd, status):
        return os.pread(fd, most, max(0, status.st_size - most)), status.st_size > most


def read_chosen(path: Path, most: int = MOST_BYTES, wait_s: float = WAIT_S) -> bytes:
    """All of a file that a user named: links are followed, and a pipe, as of `<(program)`, is read
    until its writer closes it. Raises `OSError`, `Refused` for a device, a larger file, and a pipe
    that is open after `wait_s`."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # before it is opened
        raise Refused(path, _kind(mode))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return read_open(fd, path, most, wait_s)
    finally:
        os.close(fd)


def read_open(fd: int, path: Path, most: int = MOST_BYTES, wait_s: float = WAIT_S) -> bytes:
    """As `read_chosen`, of a descriptor that does not block."""
    end = time.monotonic() + wait_s
    found = os.fstat(fd)
    if found.st_size > most:
        raise Refused(path, f"it has more than {most:,} bytes")
    poll, data = select.poll(), bytearray()
    poll.register(fd, select.POLLIN)
    while True:
        try:
            piece = os.read(fd, PIECE_BYTES)
            is_waiting = not piece and not data and stat.S_ISFIFO(found.st_mode)
        except BlockingIOError:
            piece, is_waiting = b"", True
        data += piece
        if len(data) > most:
            raise Refused(path, f"it has more than {most:,} bytes")
        if not piece and not is_waiting:
            return bytes(data)
        left_s = end - time.monotonic()
        ready = poll.poll(max(0.0, left_s) * 1000) if is_waiting else []
        is_late = left_s <= 0 and not stat.S_ISREG(found.st_mode)
        if is_late or (is_waiting and not ready):
            raise Refused(path, f"its writer has not ended it within {units.duration(wait_s)}")
        if is_waiting and ready[0][1] & select.POLLHUP and not ready[0][1] & select.POLLIN:
            return bytes(data)  # its writer has come and gone


def prompt_lines(path: Path) -> list[str]:
    """Prompts of a file that a user named, one on each line, without spaces at their ends; a blank
    line is "". Raises OSError and UnicodeDecodeError."""
    return prompts_in(read_chosen(path, MOST_PROMPT_BYTES))


def prompts_in(data: bytes) -> list[str]:
    """The same of what was read. Raises UnicodeDecodeError."""
    # utf-8-sig: editors put a mark in front. Not splitlines: a prompt can have a U+2028.
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def is_elsewhere(path: Path, run_dir: Path) -> bool:
    """Whether a run's config names prompts outside of the run and of the current folder.

    It may be somebody else's: it must not show any file of this user's as prompts.
    """
    found = path.resolve()
    return not any(found.is_relative_to(one.resolve()) for one in (run_dir, Path.cwd()))


def read_object(folder: Path, name: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """The object in a file of a run directory. Raises `OSError`, and ValueError in words."""
    return parse_object(read_bytes(folder, name, most))


def object_in(folder: Path, name: str) -> dict[str, Any]:
    """As `read_object`; {} for a file that is not there or cannot be read."""
    try:
        return read_object(folder, name)
    except (OSError, ValueError):
        return {}


class Lines:
    """Whole lines of a file that grows, without their ends; `rest` is the begin of the next one.

    One that is longer than `LONGEST_LINE` is passed over: nobody here writes any. With `cut_at`,
    for what others write, it comes as several of so many bytes.
    """

    def __init__(self, at: int = 0, cut_at: int | None = None) -> None:
        self.at, self.rest = at, b""  # the offset behind `rest`
        self._cut_at, self._is_long = cut_at, False
        self._inode: int | None = None

    def follow(self, found: os.stat_result) -> None:
        """Begin again where the name is another file's by now, or the file was emptied."""
        if self._inode not in (None, found.st_ino) or found.st_size < self.at:
            self.at, self.rest, self._is_long = 0, b"", False
        self._inode = found.st_ino

    def more(self, fd: int) -> list[bytes] | None:
        """The lines of the next `PIECE_BYTES`; None when nothing was appended."""
        data = os.pread(fd, PIECE_BYTES, self.at)
        if not data:
            return None
        self.at += len(data)
        *whole, rest = (self.rest + data).split(b"\n")
        if self._cut_at is not None:
            most = self._cut_at
            whole = [piece for line in whole for piece in pieces(line, most)]
            *parts, self.rest = pieces(rest, most)
            return whole + parts
        if self._is_long:
            self._is_long = not whole
            whole, rest = whole[1:], rest if whole else b""
        self.rest = rest
        if self._is_long or len(rest) > LONGEST_LINE:
            self.rest, self._is_long = b"", True
            self._skip_hole(fd)
        return whole

    def pieces(self, fd: int) -> Iterator[list[bytes]]:
        """What was appended since the last call, some lines at a time; to be taken to its end."""
        while (lines := self.more(fd)) is not None:
            yield lines

    def _skip_hole(self, fd: int) -> None:
        """A sparse file may have terabytes of zeros that are nowhere on the disk."""
        try:
            self.at = os.lseek(fd, self.at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                self.at = os.fstat(fd).st_size


def pieces(line: bytes, most: int) -> list[bytes]:
    """A line in pieces of at most so many bytes."""
    return [line[at : at + most] for at in range(0, max(1, len(line)), most)]


def lines(path: Path, owners: Collection[int] | None = None, last: int = 0) -> Iterator[bytes]:
    """All lines of a file without their ends, or those of its `last` bytes. Raises `OSError`."""
    with opened(path, owners) as (fd, status):
        found = Lines(max(0, status.st_size - last - 1) if last else 0)
        is_cut = found.at > 0
        for piece in found.pieces(fd):
            yield from piece[1:] if is_cut else piece
            is_cut = False
        if found.rest and not is_cut:
            yield found.rest


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "it is a link: links are not followed"
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((name for is_one, name in kinds if is_one(mode)), "a device")
    return f"it is {kind}, no plain file"
