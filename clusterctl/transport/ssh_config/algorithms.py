"""Algorithm lists of ssh_config, such as `Ciphers +aes256-cbc`, applied to this backend's."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.transport.ssh_config.patterns import matches

# Two names of one algorithm; paramiko knows the older.
_ALSO = {"curve25519-sha256@libssh.org": "curve25519-sha256"}


def limited(ours: Iterable[str], supported: Iterable[str], spec: str) -> tuple[str, ...]:
    """The algorithms to use, best first: `spec` replaces `ours`, or + adds, - removes, ^ prefers.

    Empty when the backend has none of them, so that a list can only make it stricter.
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
