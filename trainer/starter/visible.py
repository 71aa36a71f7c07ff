"""What other programs read of a rank in /proc: its command line and its variables.

The kernel shows the memory in which it has put them at a program's start. A rank is forked, so it
has the starter's; there it writes its own, as setproctitle does. `make_room` adds a variable that
is wide enough, as the last one: nothing behind it moves, so that the C library's pointers to the
others stay right.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOM = "CLUSTERCTL_RANK_ROOM"
ROOM_BYTES = 1024  # rank variables, of which an address and a path can be long


def make_room() -> None:
    """Start this program again, once, with room for a rank's variables."""
    if ROOM not in os.environ and sys.executable:
        env = {**os.environ, ROOM: " " * ROOM_BYTES}
        try:
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)
        except OSError as error:  # ranks run all the same, but tools take them for starters
            print(f"no room for the variables of ranks: {error}", file=sys.stderr)


def show(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Make these this process's command line and, beside those of its start, its variables.

    What does not fit is left out. Does nothing where the kernel does not say where they are.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        arguments, arguments_end, environ, environ_end = map(int, fields[45:49])
    except (OSError, ValueError):
        return
    if 0 < arguments < arguments_end:
        _write(arguments, arguments_end, words)
    if 0 < environ < environ_end:
        mark = b"\0%s=" % ROOM.encode()
        place = b"\0" + ctypes.string_at(environ, environ_end - environ)
        found = place.find(mark)
        if found >= 0:
            end = place.find(b"\0", found + len(mark))
            pairs = [f"{name}={value}" for name, value in variables.items()]
            _write(environ + found, environ + end - 1, pairs)


def _write(start: int, end: int, words: Sequence[str]) -> None:
    """Words with a zero byte after each; zero bytes up to the end."""
    text, size = b"".join(os.fsencode(word) + b"\0" for word in words), end - start
    if len(text) > size:
        text = text[: size - 1]
    ctypes.memmove(start, text.ljust(size, b"\0"), size)
