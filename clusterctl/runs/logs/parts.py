"""Parts of a log file: its last lines, an attempt, all of it; read in blocks from either end.

A log may have 100 MB and a run 192 of them, so what is wanted is looked for from the end.
"""

from __future__ import annotations

import bisect
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.runlog.run_files import pieces

BLOCK = 1 << 18
LONGEST = 1 << 16  # bytes of a line; what is longer comes as several lines
# Written alone on a line at the start of each attempt but the first.
_MARK = re.compile(rb"--- attempt (\d{1,9}) ---")
_ANY_MARK = b"--- attempt "


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, from one line's begin to another's."""

    begin: int
    end: int


class Written:
    """Where a file has data: a sparse one of terabytes costs nothing to make, and is not read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ends: list[int] | None = None  # of the pieces with data, in order

    def before(self, at: int, zeros: bytes) -> int:
        """Where reading backward from `at` goes on: at the end of the data before, where what was
        read behind it is nothing but zeros."""
        if zeros.strip(b"\0"):
            return at
        if self._ends is None:
            self._ends = list(self._found())
        place = bisect.bisect_left(self._ends, at)
        begins_in_data = place < len(self._ends) and self._begins[place] < at
        return at if begins_in_data else (self._ends[place - 1] if place else 0)

    def _found(self) -> Iterator[int]:
        self._begins: list[int] = []
        end = 0
        try:
            while True:
                self._begins.append(os.lseek(self._fd, end, os.SEEK_DATA))
                end = os.lseek(self._fd, self._begins[-1], os.SEEK_HOLE)
                yield end
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data behind this place
                raise


def last_lines(fd: int, part: Part, count: int) -> Part:
    """The last `count` lines of a part; what is longer than `LONGEST` counts as several."""
    if count <= 0:
        return Part(part.end, part.end)
    at, left, floor = part.end, count, max(part.begin, part.end - count * LONGEST)
    while at > floor:
        begin = max(floor, at - BLOCK)
        data = os.pread(fd, at - begin, begin)
        end = len(data)
        if at == part.end and data.endswith(b"\n"):
            end -= 1  # it ends the last line, it begins none
        while (found := data.rfind(b"\n", 0, end)) >= 0:
            left -= 1
            if not left:
                return Part(begin + found + 1, part.end)
            end = found
        at = begin
    return Part(floor, part.end)


def lines(fd: int, part: Part) -> Iterator[bytes]:
    """Lines without their ends, forward; a last one without an end counts as one."""
    at, rest = part.begin, b""
    while at < part.end:
        data = os.pread(fd, min(BLOCK, part.end - at), at)
        if not data:
            break  # cut off meanwhile
        at += len(data)
        *whole, rest = (rest + data).split(b"\n")
        *parts, rest = pieces(rest, LONGEST)
        yield from (piece for line in whole for piece in pieces(line, LONGEST))
        yield from parts
    if rest:
        yield rest


def lines_backward(fd: int, part: Part) -> Iterator[tuple[int, bytes]]:
    """(where it begins, the line) from the last to the first; of a too long one its begin."""
    at, rest, is_last, written = part.end, b"", True, Written(fd)
    while at > part.begin:
        begin = max(part.begin, at - BLOCK)
        data = os.pread(fd, at - begin, begin)
        first, *others = (data + rest).split(b"\n")
        place = begin + len(first) + sum(1 + len(line) for line in others)
        for line in reversed(others):
            place -= len(line)
            if line or not is_last:  # behind the last line's end is no line
                yield place, line
            is_last, place = False, place - 1
        at, rest = max(part.begin, written.before(begin, data)), first[:LONGEST]
    if rest or not is_last:
        yield part.begin, rest


def mark_of(line: bytes) -> int | None:
    """The attempt that begins with this line."""
    match = _MARK.fullmatch(line.rstrip(b"\r"))
    return int(match[1]) if match else None


def attempt_part(fd: int, size: int, number: int, newest: int) -> Part | None:
    """What a file has of an attempt, without its mark; None if nothing.

    Looks from the end, as the newest attempts are asked for most. `newest` is the last one that the
    launcher began: without a second attempt nothing needs to be looked for.
    """
    if newest <= 1:
        return Part(0, size) if number == 1 else None
    end = size
    for begin, mark in marks_backward(fd, size):
        if mark == number:
            after = begin + len(b"--- attempt %d ---\n" % mark)
            return Part(min(after, end), end)
        if mark < number:
            return None  # its ranks were fewer, or it wrote nothing here
        end = begin
    return Part(0, end) if number == 1 else None


def marks_backward(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(where the line begins, number of the attempt), from the last to the first."""
    overlap, at, written = 64, size, Written(fd)
    while at > 0:
        begin = max(0, at - BLOCK)
        data = os.pread(fd, min(at + overlap, size) - begin, begin)
        found = len(data)
        while (found := data.rfind(_ANY_MARK, 0, found)) >= 0:
            if begin + found >= at:
                continue  # of the block before
            line = data[found : found + overlap].split(b"\n")[0]
            is_first = begin + found == 0 or _byte_before(fd, begin + found) == b"\n"
            mark = mark_of(line) if is_first else None
            if mark is not None:
                yield begin + found, mark
        at = written.before(begin, data)


def _byte_before(fd: int, at: int) -> bytes:
    return os.pread(fd, 1, at - 1)
