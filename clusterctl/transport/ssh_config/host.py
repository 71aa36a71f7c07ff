"""One host while ssh_config is resolved for it, and the result."""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.transport.ssh_config.keywords import ALGORITHMS, HARMLESS
from clusterctl.transport.ssh_config.values import BadValue, Hop, expand, expand_path

DEFAULT_PORT = 22
LEAST_RSA_BITS = 1024  # OpenSSH's own, without RequiredRSASize
FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The settings of one host; None or () where ssh_config sets nothing."""

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
    hint = "ssh -G NODE shows how ssh itself reads the file"
    return TransportError("resolve", f"{where}: {why}", hint=hint)


@cache
def local_user() -> str:
    """This program's user, by the password database as for ssh. Raises `TransportError`."""
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
        given = (("user", user), ("port", port))
        self.values: dict[str, Any] = {key: one for key, one in given if one is not None}
        self.where: dict[str, str] = {}

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
        tokens = {
            "L": here.partition(".")[0],
            "d": str(Path.home()),
            "h": self.hostname,
            "i": str(os.getuid()),
            "k": self.values.get("hostkeyalias", "").lower() or self.original,
            "l": here,
            "n": self.original,
            "p": port,
            "r": self.remote_user,
            "u": local_user(),
        }
        if not self.values.get("proxyjump"):
            text = here + self.hostname + port + self.remote_user
            connection = text.encode(errors="surrogateescape")
            tokens["C"] = hashlib.sha1(connection, usedforsecurity=False).hexdigest()
        return tokens

    def expanded(self, key: str, text: str, tokens: Mapping[str, str], path: bool = False) -> str:
        try:
            return expand_path(text, tokens) if path else expand(text, tokens)
        except BadValue as error:
            raise problem(self.where.get(key, "ssh_config"), error) from None


def canonical_name(query: Query) -> str:
    """After the first pass. Raises `TransportError` where CanonicalizeHostname would ask DNS."""
    name, values = query.hostname, query.values
    if name[:1].isdigit() or ":" in name:
        family, flags = FAMILIES[values.get("addressfamily", "any")], socket.AI_NUMERICHOST
        with suppress(OSError):
            found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM, 0, flags)
            if len(found) == 1:
                numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
                return socket.getnameinfo(found[0][4], numeric)[0]
        if "%" in name or ":" in name or not name.strip("0123456789."):
            return name
    name = name.lower()
    mode = values.get("canonicalizehostname", "no")
    is_direct = "proxyjump" not in values and values.get("proxycommand", "none").lower() == "none"
    if mode == "no" or (not is_direct and mode != "always"):
        return name
    suffixes = _without_none(values.get("canonicaldomains", ()))
    aliases = _without_none(values.get("canonicalizepermittedcnames", ()))
    is_short = name.count(".") <= values.get("canonicalizemaxdots", 1)
    if name.endswith(".") or aliases or (is_short and suffixes):
        why = f"CanonicalizeHostname asks the DNS about {name}, which this backend does not do"
        raise problem(query.where["canonicalizehostname"], why)
    if is_short and values.get("canonicalizefallbacklocal", "yes") == "no":
        raise problem(query.where["canonicalizefallbacklocal"], f"{name} is in no canonical domain")
    return name


def build(query: Query, name: str) -> HostConfig:
    """The settings of a host with its canonical name. Raises `TransportError`."""
    values = query.values
    for keyword, is_harmless in HARMLESS.items():
        if keyword in values and not is_harmless(values[keyword]):
            why = f"{keyword} {values[keyword]} is not supported by this backend"
            raise problem(query.where[keyword], why)
    query.values["hostname"], query.final = name, True
    tokens = query.tokens()
    proxy_tokens = {token: tokens[token] for token in "hknpr"}

    def path(keyword: str, word: str) -> str:
        return query.expanded(keyword, word, tokens, path=True)

    def paths(keyword: str) -> tuple[str, ...] | None:
        words = values.get(keyword)
        return None if words is None else tuple(path(keyword, word) for word in words)

    identities, system_hosts = paths("identityfile"), values.get("globalknownhostsfile")
    agent, command = values.get("identityagent"), values.get("proxycommand", "none")
    alias = values.get("hostkeyalias")
    if command.lower() == "none":
        command = None
    try:
        hops = tuple(hop.expanded(proxy_tokens) for hop in values.get("proxyjump", ()))
    except BadValue as error:
        raise problem(query.where["proxyjump"], error) from None
    return HostConfig(
        hostname=name,
        port=values.get("port"),
        user=values.get("user"),
        address_family=values.get("addressfamily"),
        identity_files=None if identities is None else _without_none(identities),
        certificate_files=_without_none(paths("certificatefile") or ()),
        identities_only=values.get("identitiesonly") == "yes",
        identity_agent=agent and path("identityagent", agent),
        proxy_jump=hops,
        proxy_command=command and query.expanded("proxycommand", command, proxy_tokens),
        host_key_alias=alias and alias.lower(),
        user_known_hosts=paths("userknownhostsfile"),
        global_known_hosts=None if system_hosts is None else tuple(system_hosts),
        strict_host_keys=values.get("stricthostkeychecking"),
        keepalive_s=values.get("serveraliveinterval"),
        required_rsa_bits=values.get("requiredrsasize"),
        algorithms=tuple((keyword, values[keyword]) for keyword in ALGORITHMS if keyword in values),
    )


def _without_none(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word.lower() != "none")
