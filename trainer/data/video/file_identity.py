"""Which file a clip is, however its path is written: size, time, and a hash of both its ends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from trainer.data.video.container import ClipError, check_regular

ENDS_BYTES = 1 << 16  # headers and indices, which say how long every frame is, are in there


def identify(path: str, known: Sequence[int] = ()) -> list[int | None]:
    """[bytes, time of the last change in ns, 64 bits of the ends]; the last is None for a file of
    the size and time `known`. Raises ClipError."""
    facts = check_regular(path)
    found: list[int | None] = [facts.st_size, facts.st_mtime_ns]
    if found == [*known]:
        return [*found, None]
    digest = hashlib.blake2b(str(facts.st_size).encode(), digest_size=8)
    try:
        with Path(path).open("rb") as file:
            digest.update(file.read(ENDS_BYTES))
            file.seek(max(0, facts.st_size - ENDS_BYTES))
            digest.update(file.read(ENDS_BYTES))
    except OSError as error:
        refused = ClipError(error.strerror or str(error))
        refused.errno = error.errno
        raise refused from None
    return [*found, int.from_bytes(digest.digest(), "little")]


def identify_all(
    paths: Sequence[str], known: Sequence[Sequence[int]]
) -> list[list[int | None] | str]:
    """Of many files; a text says why one cannot be read."""
    found: list[list[int | None] | str] = []
    for path, own in zip(paths, known, strict=True):
        try:
            found.append(identify(path, own))
        except ClipError as error:
            found.append(str(error) or os.strerror(error.errno or 5))
    return found
