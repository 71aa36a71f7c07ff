"""Files that git-lfs has left as pointers: a clone without `git lfs pull` has them for weights."""

from __future__ import annotations

from pathlib import Path

HEAD = b"version https://git-lfs"
HINT = "git lfs pull, or download the file itself"


def pointer(path: Path, what: str) -> str:
    """The sentence about a file that is a pointer instead of `what`; "" for any other file."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(HEAD)) == HEAD
        size = path.stat().st_size
    except OSError:
        return ""
    return f"{path} is a git-lfs pointer of {size} bytes, not {what}" if is_pointer else ""
