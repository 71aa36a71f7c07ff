"""OpenSSH's patterns: `*` and `?` are wildcards, a leading `!` excludes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable


def matches(name: str, pattern: str) -> bool:
    """Whether one pattern fits the whole name. Upper and lower case differ."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # [ is special in fnmatch alone


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether some pattern fits and none of those with `!` does."""
    found = False
    for pattern in patterns:
        if matches(name, pattern.removeprefix("!")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def host_matches(name: str, patterns: str) -> bool:
    """A comma-separated list against a host name, where upper and lower case are the same."""
    return matches_any(name.lower(), patterns.lower().split(","))
