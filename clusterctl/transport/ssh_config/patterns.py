"""OpenSSH's patterns, where `*` and `?` are wildcards and `!` excludes, and lists of algorithms."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

# Two names of one algorithm; paramiko knows the older.
_ALSO = {"curve25519-sha256@libssh.org": "curve25519-sha256"}


def matches(name: str, pattern: str) -> bool:
    """Whether one pattern fits the whole name. Upper and lower case differ."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))  # [ is special in fnmatch alone


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether some pattern fits and none of those with `!` does."""
    fitting = [one for one in patterns if matches(name, one.removeprefix("!"))]
    return bool(fitting) and not any(one.startswith("!") for one in fitting)


def host_matches(name: str, patterns: str) -> bool:
    """A comma-separated list against a host name, where upper and lower case are the same."""
    return matches_any(name.lower(), patterns.lower().split(","))


def limited(ours: Iterable[str], supported: Iterable[str], spec: str) -> tuple[str, ...]:
    """The algorithms to use, best first: `spec` replaces `ours`, or + adds, - removes, ^ prefers.

    Empty when the backend supports none of them, so that a list can only make it stricter.
    """
    sign, names = (spec[0], spec[1:]) if spec[0] in "+-^" else ("", spec)
    ours, supported = list(ours), list(supported)
    listed = [
        name
        for pattern in names.split(",")
        for name in supported
        if matches(name, pattern) or matches(_ALSO.get(name, name), pattern)
    ]
    chosen = {
        "": listed,
        "+": [*ours, *listed],
        "-": [name for name in ours if name not in listed],
        "^": [*listed, *ours],
    }[sign]
    return tuple(dict.fromkeys(chosen))
