"""Which host and user names may be used: OpenSSH's own rule, because both reach shells.

ProxyCommand and `Match exec` pass them to one as %h and %r (CVE-2023-51385).
"""

from __future__ import annotations

import re

_HOST = re.compile(r"""^-|['`"$\\;&<>|(){},\s]""")
_USER = re.compile(r"""^-|['`";&<>|(){}]|\s-|\\$""")


def why_no_host_name(name: str) -> str | None:
    """The sentence about a host name that ssh refuses too; None for a usable one."""
    return _why("host name", name, _HOST)


def why_no_user_name(name: str) -> str | None:
    """The sentence about a user name that ssh refuses too; None for a usable one."""
    return _why("user name", name, _USER)


def _why(what: str, name: str, forbidden: re.Pattern[str]) -> str | None:
    found = forbidden.search(name)
    odd = found[0] if found else next((char for char in name if not char.isprintable()), None)
    if odd == "-":
        return f"{what} {name!r} begins with '-'"
    return odd and f"{what} {name!r} contains {odd!r}, which a shell could interpret"
