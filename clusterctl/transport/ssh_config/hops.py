"""ProxyJump lines as the machines on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.transport.ssh_config.values import BadValue, expand, port_number

_HOP = re.compile(
    r"(?P<scheme>ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^\]\s]+\]|[^:/@\[\]\s]+)(?::(?P<port>\w+))?/?"
)


@dataclass(frozen=True, slots=True)
class Hop:
    """One jump host."""

    host: str
    port: int | None
    user: str | None

    def expanded(self, tokens: Mapping[str, str]) -> Hop:
        """With its %-tokens replaced. Raises `BadValue`."""
        user = None if self.user is None else expand(self.user, tokens)
        return Hop(expand(self.host, tokens), self.port, user)


def parse_jump(text: str) -> tuple[Hop, ...]:
    """`user@gate:2222,inner` as hops from here to the node; none for `none`. Raises `BadValue`."""
    if text.lower() == "none":
        return ()
    hops = []
    for part in text.split(","):
        if " " in part or "\t" in part:
            raise BadValue(f"{part!r} has a space in it, which only some versions of ssh accept")
        match = _HOP.fullmatch(part)
        # In a URI a user is percent-encoded and may have parameters.
        if not match or (match["scheme"] and set(match["user"] or "") & set("@%;")):
            raise BadValue(f"{part!r} is not [user@]host[:port]")
        port = port_number(match["port"]) if match["port"] else None
        hops.append(Hop(match["host"].strip("[]"), port, match["user"]))
    return tuple(hops)
