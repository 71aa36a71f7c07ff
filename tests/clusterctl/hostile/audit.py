"""What this process does while a hostile node speaks: starts programs, opens files that are not the test's."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.startfile", "pty.spawn")
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown")  # fmt: skip
OWN = (tempfile.gettempdir(), "/dev/", "/run/", "/proc/", str(Path.home() / ".config/clusterctl"))
BAIT = ("etc/passwd", ".ssh/", "etc/shadow")  # where mangled paths lead
DIR_FD = {
    "os.mkdir": 2,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.link": 2,
    "os.chmod": 2,
    "os.chown": 3,
}
_seen: list[str] = []
_on: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _on or event not in ("open", *STARTS, *CHANGES):
        return
    if event in STARTS:
        _seen.append(f"{event} {args!r:.300}")
        return
    path = args[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.normpath(_folder(event, args) / os.fsdecode(path))
    flags = args[2] if event == "open" and len(args) > 2 and isinstance(args[2], int) else 0
    is_change = event != "open" or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if any(bait in name for bait in BAIT) or (is_change and not name.startswith(OWN)):
        _seen.append(f"{event} {name} {flags:o}")


def _folder(event: str, args: tuple[Any, ...]) -> Path:
    """What a relative path starts from: shutil.rmtree removes names in a folder that it has open."""
    at = DIR_FD.get(event, len(args))
    fd = args[at] if at < len(args) else -1
    if not isinstance(fd, int) or fd < 0:
        return Path.cwd()
    return Path(f"/proc/self/fd/{fd}").readlink()


sys.addaudithook(_hook)  # cannot be taken away: it looks only inside `nothing_done`


@contextlib.contextmanager
def nothing_done(allowed: tuple[str, ...] = ()) -> Iterator[None]:
    """No program is started, no file outside of temporary folders is changed, no bait is read."""
    _seen.clear()
    _on.append(True)
    try:
        yield
    finally:
        _on.pop()
    found = [one for one in _seen if not any(word in one for word in allowed)]
    assert found == [], found[:3]
