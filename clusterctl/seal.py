"""A seal on what a run directory says of a run: by it, what this user's clusterctl wrote is known.

The secret is in the user's own folder for state, else in the private folder of the machine, and in
no run directory. All supervisors of a user have the same one.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.payload.files.ownership import NotPrivate, open_own
from clusterctl.payload.files.private import own_path

FILE = "run-seal.key"
BYTES = 32


def seal_of(document: dict[str, Any]) -> str:
    """Raises OSError where no secret can be kept."""
    return _seal(_secret(), document)


def fits(found: object, document: dict[str, Any]) -> bool:
    """Whether a seal is that of a document, by any secret of this user."""
    text = found if isinstance(found, str) and found.isascii() else ""
    known = (_read(path) for path in _places())
    return any(hmac.compare_digest(text, _seal(one, document)) for one in known if one is not None)


def _seal(secret: bytes, document: dict[str, Any]) -> str:
    return hmac.digest(secret, json.dumps(document).encode(), "sha256").hex()


def _places() -> Iterator[Path]:
    # Not XDG_STATE_HOME: `attach` in a crontab has another environment than `launch` had.
    yield Path.home() / ".local" / "state" / "clusterctl" / FILE
    with contextlib.suppress(NotPrivate):
        yield Path(own_path(FILE))


def _secret() -> bytes:
    """The first that there is; made where there is none, also by two programs at once."""
    failure: OSError | None = None
    for path in _places():
        try:
            if (found := _read(path)) is not None:
                return found
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = path.with_name(f".{FILE}.{os.urandom(8).hex()}")
            try:
                with os.fdopen(
                    open_own(str(aside), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb"
                ) as file:
                    file.write(os.urandom(BYTES))
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)  # the name comes with its content, and never anew
            finally:
                aside.unlink(missing_ok=True)
            if (found := _read(path)) is not None:
                return found
        except OSError as error:
            failure = error
    raise failure or OSError(f"no secret can be kept in {' or '.join(map(str, _places()))}")


def _read(path: Path) -> bytes | None:
    """None where there is none of this user alone."""
    with contextlib.suppress(OSError), os.fdopen(open_own(str(path), os.O_RDONLY), "rb") as file:
        if not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            found = file.read(BYTES + 1)
            return found if len(found) == BYTES else None
    return None
