"""The names that requests to our servers may use: those of this machine, and addresses.

A page of another site can make its own name point to this machine, loopback too (DNS rebinding);
the browser then lets it read what is served here. But the requests say that name, and it is none of
ours.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Collection
from urllib.parse import urlsplit

LOOKUP_S = 2.0  # a resolver that does not answer must not hold up the start


def our_names(host: str) -> frozenset[str]:
    """`localhost`, what the user has us listen on and, beyond loopback, the machine's own names."""
    names = {"localhost", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), *_qualified_name()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address or name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether the `Host` of a request is an address or one of the names, at any port (tunnels)."""
    with contextlib.suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").partition("%")[0].rstrip(".")
        if name in names:
            return True
        ipaddress.ip_address(name)
        return True
    return False


def is_foreign(host: str, origin: str | None, names: Collection[str]) -> bool:
    """Whether a request was sent by a page of another site, or under a name that is not ours."""
    try:
        return not is_ours(host, names) or (origin is not None and urlsplit(origin).netloc != host)
    except ValueError:  # http://[::
        return True


def _qualified_name() -> set[str]:
    """This machine's fully qualified name; none where the resolver does not answer."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(LOOKUP_S)
    return {name.lower() for name in found}
