"""Why a file or folder cannot be read, in words: whose it is, where that is the reason."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def why_closed(error: OSError) -> str:
    """The sentence of a place that cannot be read: whose it is, where that is the reason."""
    place = Path(os.fsdecode(error.filename)) if error.filename else None
    why = f"{place}: {error.strerror}" if place else str(error.strerror or error)
    if not isinstance(error, PermissionError) or place is None:
        return why
    for folder in (place, *place.absolute().parents):
        try:
            found = folder.lstat()
        except OSError:
            continue
        if found.st_uid != os.getuid() and not os.access(folder, os.R_OK | os.X_OK):
            return f"{folder} belongs to {user_name(found.st_uid)} and is closed to you"
    return why


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
