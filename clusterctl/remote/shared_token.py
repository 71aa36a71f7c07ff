"""A file with a random word, by which nodes tell whether a folder of theirs is the head's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.errors import UsageError


@contextmanager
def token_in(folder: Path | None) -> Iterator[tuple[Path | None, str | None]]:
    """The file and its word, for as long as the nodes are asked; nothing without a folder.

    Raises `UsageError` where the file cannot be written.
    """
    if folder is None:
        yield None, None
        return
    word = secrets.token_hex(16)
    path = folder.absolute() / f".clusterctl-token-{word[:8]}"
    try:
        path.write_text(word, encoding="ascii")
    except OSError as error:
        raise UsageError(f"cannot write in {folder}: {error.strerror}") from None
    try:
        yield path, word
    finally:
        path.unlink(missing_ok=True)


def where_runs_would_be(outputs: Path) -> Path | None:
    """The folder itself, or the nearest above it that there is; None where this user may not write
    there, which making the run directory says."""
    path = outputs.absolute()
    folder = next((one for one in (path, *path.parents) if one.is_dir()), Path("/"))
    return folder if os.access(folder, os.W_OK) else None
