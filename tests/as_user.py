"""Run a command as an ordinary user: `unshare --mount python -m tests.as_user UID PATH… -- COMMAND…`.

Needs root. The user can enter the given folders even where they lie below one that is closed to others
(an interpreter under /root): in this mount namespace such a folder is empty but for the given ones.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path


def closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that other users cannot enter."""
    ways = [*reversed(path.parents), path]
    return next((way for way in ways if not way.stat().st_mode & stat.S_IXOTH), None)


def open_up(paths: list[Path]) -> None:
    """Make every path reachable for all users of this mount namespace."""
    closed = {path: folder for path in paths if (folder := closed_above(path)) is not None}
    if not closed:
        return
    mount("-t", "tmpfs", "tmpfs", "/mnt")
    kept = {path: Path("/mnt", str(number)) for number, path in enumerate(closed)}
    for path, place in kept.items():
        place.mkdir()
        mount("--bind", path, place)
    for folder in set(closed.values()):
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for path, place in kept.items():
        path.mkdir(parents=True, exist_ok=True)
        mount("--bind", place, path)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def main(words: list[str]) -> None:
    split = words.index("--")
    user, paths, command = int(words[0]), words[1:split], words[split + 1 :]
    open_up([Path(path) for path in paths])
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
