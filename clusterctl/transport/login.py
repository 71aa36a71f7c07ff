"""The host key and the login of a connection whose key exchange is done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from checks import units
from clusterctl.errors import TransportError
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.identities import Identities
from clusterctl.transport.known_hosts import KnownHosts, Verdict, fingerprint
from clusterctl.transport.paramiko_import import BROKEN, paramiko
from clusterctl.transport.patched_transport import PatchedTransport
from clusterctl.transport.ssh_config.host import DEFAULT_PORT, LEAST_RSA_BITS, HostConfig


@dataclass(frozen=True, slots=True)
class Target:
    """One machine to connect to, with its settings from hostfile and ssh_config."""

    host: str
    port: int
    user: str
    config: HostConfig
    identity: str | None
    known: KnownHosts
    accept_to: Path | None  # where an unknown key is written; None: it is refused
    record: bool

    @property
    def known_as(self) -> tuple[str, int]:
        """Name and port under which the host's key is on record; an alias has no port."""
        alias = self.config.host_key_alias
        return (alias, DEFAULT_PORT) if alias else (self.host, self.port)

    @property
    def port_option(self) -> str:
        return "" if self.port == DEFAULT_PORT else f"-p {self.port} "


class OtherTypes(Exception):
    """The host is on record, in hashed lines, with key types that were not requested."""

    def __init__(self, types: tuple[str, ...]) -> None:
        super().__init__()
        self.types = types


Types = tuple[str, ...] | None


def verify(transport: PatchedTransport, target: Target, progress: Progress, types: Types) -> None:
    """Check the host key. Raises `OtherTypes` when types other than `types` are on record."""
    key = transport.get_remote_server_key()
    key_type, text = key.get_name(), key.get_base64()
    bits = target.config.required_rsa_bits or LEAST_RSA_BITS
    if key_type == "ssh-rsa" and key.get_bits() < bits:
        raise TransportError("hostkey", f"the host's RSA key has fewer than {bits} bits")
    name, port = target.known_as
    verdict = target.known.check(name, port, key_type, text)
    if verdict.state == "changed" and types is not None and set(verdict.types) != set(types):
        raise OtherTypes(verdict.types)
    if verdict.state == "unknown" and target.accept_to is not None and not verdict.unread:
        progress.notes.append(f"hostkey: accepted {key_type} {fingerprint(text)}")
        if not target.record:
            return
        try:
            verdict = target.known.accept(target.accept_to, name, port, key_type, text)
        except OSError as error:
            message = f"cannot write {target.accept_to}: {error.strerror}"
            raise TransportError("hostkey", message) from None
    if verdict.state == "unknown" and verdict.authority is None:
        progress.notes.append(f"hostkey: the node shows {key_type} {fingerprint(text)}")
    if verdict.state != "known":
        raise _refused_key(target, verdict, key_type, text)


def _refused_key(target: Target, verdict: Verdict, key_type: str, text: str) -> TransportError:
    name, port = target.known_as
    entry = verdict.entry
    if verdict.state == "revoked" and entry is not None:
        return TransportError("hostkey", f"the host key is revoked in {entry.where}")
    if entry is not None:  # changed, or on record only with other types
        old = f"{entry.where} has {entry.key_type} {fingerprint(entry.key)}"
        new = f"the node shows {key_type} {fingerprint(text)}"
        message = f"the host key has changed: {old}, {new}"
        shown = name if port == DEFAULT_PORT else f"[{name}]:{port}"
        remove = f"ssh-keygen -R '{shown}' -f {entry.path}"
        hint = f"if the node was reinstalled: {remove}, then once --accept-new"
    elif verdict.authority is not None:
        message = f"{verdict.authority.where}: this backend cannot check a @cert-authority"
        hint = "run once with --accept-new to record the host key itself"
    elif verdict.unread:
        message = f"cannot tell whether the host key ({key_type}) is known: {verdict.unread}"
        keys = "UserKnownHostsFile or GlobalKnownHostsFile in ~/.ssh/config"
        hint = f"make that file readable, or leave it out: {keys}"
    else:
        message = f"unknown host key ({key_type})"
        hint = "on first contact run the same command once with --accept-new"
        if name == target.host:  # not an alias, which ssh-keyscan would not write
            scan = f"ssh-keyscan -t {key_type.removeprefix('ssh-')} {target.port_option}{name}"
            hint += f", or: {scan} >> ~/.ssh/known_hosts"
    return TransportError("hostkey", message, hint=hint)


def log_in(
    transport: PatchedTransport,
    target: Target,
    identities: Identities,
    deadline: float,
    limits: Limits,
) -> None:
    """Offer the keys for the target in turn. Raises `TransportError("auth")`."""
    offer = identities.offer(target.config, target.identity)
    refused, stopped = [], ""
    for identity in offer.identities:
        if not transport.may_offer(identity.key):
            offer.problems.append(f"PubkeyAcceptedAlgorithms excludes {identity.name}")
            continue
        transport.auth_timeout = max(0.1, deadline - time.monotonic())
        try:
            more = transport.auth_publickey(target.user, identity.key)
        except paramiko.BadAuthenticationType as error:
            stopped = f"the node accepts only {', '.join(error.allowed_types)}"
        except BROKEN as error:
            is_refusal = isinstance(error, paramiko.AuthenticationException)
            if is_refusal and time.monotonic() >= deadline:
                message = f"no answer to the login within {units.duration(limits.handshake_s)}"
                raise TransportError("auth", message) from None
            refused.append(identity.name)
            if is_refusal and transport.is_active():
                continue
            stopped = f"the node closed the connection: {error}"
        else:
            if not more:
                return
            stopped = f"the node requires more than a key: {', '.join(more)}"
        break
    sentence = f"no key to log in as {target.user}"
    if refused:
        sentence = f"refused for user {target.user}: {', '.join(refused)}"
    message = "; ".join(filter(None, [sentence, stopped, *offer.problems]))
    copy = f"ssh-copy-id {target.port_option}{target.user}@{target.host}"
    raise TransportError("auth", message, hint=f"{copy}, or name a key: identity=PATH")
