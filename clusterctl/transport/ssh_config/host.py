"""One host while ssh_config is resolved for it, and what comes out of that."""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.transport.ssh_config.hops import Hop
from clusterctl.transport.ssh_config.keywords import HARMLESS
from clusterctl.transport.ssh_config.values import BadValue, expand, expand_path

DEFAULT_PORT = 22
LEAST_RSA_BITS = 1024  # OpenSSH's own least, where RequiredRSASize says nothing
FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What ssh_config says about one host; None or () where it says nothing."""

    hostname: str
    port: int | None = None
    user: str | None = None
    address_family: str | None = None
    identity_files: tuple[str, ...] | None = None  # () after `IdentityFile none`
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    proxy_jump: tuple[Hop, ...] = ()
    proxy_command: str | None = None  # tokens expanded
    host_key_alias: str | None = None
    user_known_hosts: tuple[str, ...] | None = None
    global_known_hosts: tuple[str, ...] | None = None
    strict_host_keys: str | None = None
    keepalive_s: int | None = None
    required_rsa_bits: int | None = None
    algorithms: tuple[tuple[str, str], ...] = ()  # keyword and list, as `Ciphers +aes256-ctr`


def problem(where: object, why: object) -> TransportError:
    return TransportError(
        "resolve", f"{where}: {why}", hint="ssh -G NODE shows how ssh itself reads the file"
    )


@cache
def local_user() -> str:
    """Who runs this program, by the password database as for ssh. Raises `TransportError`."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise TransportError("resolve", f"no user has the id {os.getuid()}") from None


class Query:
    """One host while it is resolved; `match.py` reads it."""

    def __init__(self, original: str, user: str | None, port: int | None) -> None:
        self.original = original
        self.matched_name = original  # by Host lines; in the second pass the resolved name
        self.final = False
        self.values: dict[str, Any] = {}
        self.where: dict[str, str] = {}
        if user is not None:
            self.values["user"] = user
        if port is not None:
            self.values["port"] = port

    @property
    def hostname(self) -> str:
        name: str = self.values.get("hostname", self.original)
        if self.final or "hostname" not in self.values:
            return name
        return self.expanded("hostname", name, {"h": self.original})

    @property
    def remote_user(self) -> str:
        return self.values.get("user") or local_user()

    def tokens(self) -> dict[str, str]:
        """Values of the %-tokens. No %C where ProxyJump is set: versions of ssh differ about it."""
        here, port = socket.gethostname(), str(self.values.get("port", DEFAULT_PORT))
        alias = self.values.get("hostkeyalias", "").lower() or self.original
        tokens = {
            "L": here.partition(".")[0],
            "d": str(Path.home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "k": alias,
            "l": here,
            "n": self.original,
            "p": port,
            "r": self.remote_user,
            "u": local_user(),
        }
        if not self.values.get("proxyjump"):
            connection = (here + self.hostname + port + self.remote_user).encode(
                errors="surrogateescape"
            )
            tokens["C"] = hashlib.sha1(connection, usedforsecurity=False).hexdigest()
        return tokens

    def expanded(
        self, keyword: str, text: str, tokens: Mapping[str, str], path: bool = False
    ) -> str:
        try:
            return expand_path(text, tokens) if path else expand(text, tokens)
        except BadValue as error:
            raise problem(self.where.get(keyword, "ssh_config"), error) from None


def canonical_name(query: Query) -> str:
    """The host's name after the first pass: addresses in their usual form, names in lower case.

    Raises `TransportError` where CanonicalizeHostname would ask the DNS.
    """
    name, values = query.hostname, query.values
    if name[:1].isdigit() or ":" in name:
        family = FAMILIES[values.get("addressfamily", "any")]
        try:
            (*_, address), *more = socket.getaddrinfo(
                name, None, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST
            )
            if not more:
                return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
        except OSError:
            pass
        if "%" in name or ":" in name or not name.strip("0123456789."):
            return name
    name = name.lower()
    mode = values.get("canonicalizehostname", "no")
    is_direct = "proxyjump" not in values and values.get("proxycommand", "none").lower() == "none"
    if mode == "no" or (not is_direct and mode != "always"):
        return name
    suffixes = [word for word in values.get("canonicaldomains", ["none"]) if word.lower() != "none"]
    is_short = name.count(".") <= values.get("canonicalizemaxdots", 1)
    aliases = [
        word for word in values.get("canonicalizepermittedcnames", []) if word.lower() != "none"
    ]
    if name.endswith(".") or aliases or (is_short and suffixes):
        raise problem(
            query.where["canonicalizehostname"],
            f"CanonicalizeHostname asks the DNS about {name}, which this backend does not do",
        )
    if is_short and values.get("canonicalizefallbacklocal", "yes") == "no":
        raise problem(query.where["canonicalizefallbacklocal"], f"{name} is in no canonical domain")
    return name


def build(query: Query, name: str) -> HostConfig:
    values = query.values
    for keyword, is_harmless in HARMLESS.items():
        if keyword in values and not is_harmless(values[keyword]):
            raise problem(
                query.where[keyword],
                f"{keyword} {values[keyword]} is not supported by this backend",
            )
    query.values["hostname"], query.final = name, True
    tokens = query.tokens()

    def paths(keyword: str) -> tuple[str, ...]:
        return tuple(
            query.expanded(keyword, word, tokens, path=True) for word in values.get(keyword, ())
        )

    on_the_way = {token: tokens[token] for token in "hknpr"}
    command = values.get("proxycommand", "none")
    try:
        hops = tuple(hop.expanded(on_the_way) for hop in values.get("proxyjump", ()))
    except BadValue as error:
        raise problem(query.where["proxyjump"], error) from None
    agent = values.get("identityagent")
    algorithms = (
        "ciphers",
        "hostkeyalgorithms",
        "kexalgorithms",
        "macs",
        "pubkeyacceptedalgorithms",
    )
    return HostConfig(
        hostname=name,
        port=values.get("port"),
        user=values.get("user"),
        address_family=values.get("addressfamily"),
        identity_files=_without_none(paths("identityfile")) if "identityfile" in values else None,
        certificate_files=_without_none(paths("certificatefile")),
        identities_only=values.get("identitiesonly") == "yes",
        identity_agent=agent and query.expanded("identityagent", agent, tokens, path=True),
        proxy_jump=hops,
        proxy_command=None
        if command.lower() == "none"
        else query.expanded("proxycommand", command, on_the_way),
        host_key_alias=values["hostkeyalias"].lower() if "hostkeyalias" in values else None,
        user_known_hosts=paths("userknownhostsfile") if "userknownhostsfile" in values else None,
        global_known_hosts=tuple(values["globalknownhostsfile"])
        if "globalknownhostsfile" in values
        else None,
        strict_host_keys=values.get("stricthostkeychecking"),
        keepalive_s=values.get("serveraliveinterval"),
        required_rsa_bits=values.get("requiredrsasize"),
        algorithms=tuple((keyword, values[keyword]) for keyword in algorithms if keyword in values),
    )


def _without_none(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word.lower() != "none")
