"""What may be the name of a node: one rule, wherever the name comes from.

Names come from hostfiles, answers of nodes, run directories, recordings and ledgers of others. They
are shown, put into node sets and paths, and offered as arguments of commands. A name that passes is
no option, no path, no group, no node set, and nothing that a shell or a terminal interprets.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Annotated, Any

# The type of what passes; those who read dataclasses from files of others check it by this hint.
NodeName = Annotated[str, "the name of a node"]

MOST = 253  # characters, as in the DNS
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
# OpenSSH's rule for names, because ProxyCommand and `Match exec` pass them to a shell as %h and %r
# (CVE-2023-51385).
_REFUSED = {
    "host name": re.compile(r"""^-|['`"$\\;&<>|(){},\s]"""),
    "user name": re.compile(r"""^-|['`";&<>|(){}]|\s-|\\$"""),
}


def is_node_name(value: object) -> bool:
    """Whether a value of anywhere is a name: letters, digits, `_ . -`, or an IPv6 address."""
    if type(value) is not str or len(value) > MOST:
        return False
    return _NAME.fullmatch(value) is not None or (":" in value and is_ipv6(value))


def node_name(value: object) -> NodeName | None:
    """The name, or None for what cannot be one."""
    return value if isinstance(value, str) and is_node_name(value) else None


def node_names(values: Any, most: int) -> tuple[NodeName, ...]:
    """At most `most` names of a list; none at all where one of them cannot be a name."""
    given = values[:most] if isinstance(values, list | tuple) else ()
    names = [name for name in map(node_name, given) if name is not None]
    return tuple(names) if len(names) == len(given) else ()


def first_bad_name(names: Iterable[object]) -> str | None:
    """The sentence about the first that cannot be a name."""
    return next((why_bad_name(str(name)) for name in names if not is_node_name(name)), None)


def why_bad_name(name: str) -> str | None:
    """The sentence about what cannot be the name of a node; None for a good one."""
    if is_node_name(name):
        return None
    if len(name) > MOST:
        return f"node name {name[:40] + '...'!r} has more than {MOST} characters"
    if why := why_refused("host name", name):
        return why
    if not name:
        return "the name of a node is empty"
    if odd := _ODD.search(name):
        return f"node name {name!r} contains {odd[0]!r}; letters, digits and _ . - may be in it"
    return f"node name {name!r} begins with {name[0]!r}"


def why_refused(what: str, name: str) -> str | None:
    """The sentence about a "host name" or "user name" that ssh refuses too; None for a good one."""
    found = _REFUSED[what].search(name)
    odd = found[0] if found else next((char for char in name if not char.isprintable()), None)
    if odd == "-":
        return f"{what} {name!r} begins with '-'"
    return odd and f"{what} {name!r} contains {odd!r}, which a shell could interpret"


def is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address without a zone."""
    try:
        socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        return False
    return True
