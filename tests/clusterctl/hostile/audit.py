"""What this process does while a hostile node speaks: starts programs, opens files that are not the
test's, speaks to addresses."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.startfile", "pty.spawn")
TALKS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")  # fmt: skip
# Where the arguments have a path, and the descriptor of the folder from which it starts.
PLACES: dict[str, tuple[tuple[int, int], ...]] = {
    "open": ((0, 9),), "os.mkdir": ((0, 2),), "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.truncate": ((0, 9),),
    "os.rename": ((0, 2), (1, 3)), "os.link": ((0, 2), (1, 3)), "os.symlink": ((1, 2),), "os.chmod": ((0, 2),), "os.chown": ((0, 3),),
}  # fmt: skip
OWN = (tempfile.gettempdir(), "/dev/", "/run/", "/proc/", str(Path.home() / ".config/clusterctl"))
BAIT = ("etc/passwd", ".ssh/", "etc/shadow")  # where mangled paths lead
_seen: list[str] = []
_on: list[tuple[str, ...]] = []  # what may be changed, for each that looks


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _on:
        return
    if event in STARTS:
        _seen.append(f"{event} {args!r:.300}")
    elif event in TALKS:
        to = args[0] if event.startswith("socket.get") else args[-1]
        if not _is_private(to):
            _seen.append(f"{event} {to!r:.300}")
    elif event in PLACES:
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        is_change = event != "open" or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for at, folder_at in PLACES[event]:
            if isinstance(args[at], str | bytes | os.PathLike):
                name = os.path.normpath(_folder(args, folder_at) / os.fsdecode(args[at]))
                is_elsewhere = is_change and not name.startswith(_on[-1])
                if is_elsewhere or any(bait in name for bait in BAIT):
                    _seen.append(f"{event} {name} {flags:o}")


def _is_private(address: Any) -> bool:
    """Whether it is a socket of this machine's files, in a place of our own; or nowhere."""
    if address is None:  # of a socket that is connected already
        return True
    if not isinstance(address, str | bytes):
        return False
    name = os.fsdecode(address)
    return name.startswith(("\0clusterctl", *_on[-1]))


def _folder(args: tuple[Any, ...], at: int) -> Path:
    """What a relative path starts from: shutil.rmtree removes names in a folder that it has open."""
    fd = args[at] if at < len(args) else -1
    if not isinstance(fd, int) or fd < 0:
        return Path.cwd()
    return Path(f"/proc/self/fd/{fd}").readlink()


sys.addaudithook(_hook)  # cannot be taken away: it looks only inside `nothing_done`


@contextlib.contextmanager
def nothing_done(allowed: tuple[str, ...] = (), own: tuple[str, ...] = OWN) -> Iterator[None]:
    """No program is started, nothing is said to an address, no file outside of `own` is changed, no
    bait is read."""
    _seen.clear()
    _on.append(own)
    try:
        yield
    finally:
        _on.pop()
    found = [one for one in _seen if not any(word in one for word in allowed)]
    assert found == [], found[:3]
