"""Which file a path of a manifest means, and how the same file is written in another folder."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_FOLDERS_KEPT = 1 << 16


def folder_of(manifest: Path) -> Path:
    """Where the relative paths of a manifest start: in its folder, links followed."""
    # Path.resolve() raises RuntimeError for a link to itself.
    return Path(os.path.realpath(manifest)).parent


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and `//`: equal for equal files, as far as the text says
    it (links are not followed)."""
    return "/" + posixpath.normpath(path).lstrip("/")


def whole_path(folder: str, path: str) -> str:
    """The absolute path of a row's file, as `normal` writes it."""
    return normal(path if path.startswith("/") else f"{folder}/{path}")


def is_spelled_in_one_way(paths: Iterable[str]) -> bool:
    """Whether two of these paths that differ as texts never differ in their spelling only."""
    starts = set()
    for path in paths:
        if "//" in path or "/." in path or path.startswith("."):
            return False
        starts.add(path.startswith("/"))
    return len(starts) < 2


class Move:
    """Relative paths of one folder, written for another. Both folders are resolved: a `..` at the
    head of a path may be taken off; one behind a name may follow a link and stays."""

    def __init__(self, folder: Path, to: Path) -> None:
        self._from, self._to = folder.parts[1:], to.parts[1:]
        self._head = lru_cache(_FOLDERS_KEPT)(self._moved)

    def __call__(self, path: str) -> str:
        if not path or path.startswith("/"):
            return path
        head, _, name = path.rpartition("/")
        return self._head(head) + name

    def _moved(self, head: str) -> str:
        own = [part for part in head.split("/") if part not in ("", ".")]
        base = [*self._from]
        while own and own[0] == "..":
            own.pop(0)
            del base[-1:]
        parts, common = [*base, *own], 0
        while common < min(len(parts), len(self._to)) and parts[common] == self._to[common]:
            common += 1
        moved = [".."] * (len(self._to) - common) + parts[common:]
        return "".join(f"{part}/" for part in moved)
