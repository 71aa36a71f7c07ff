"""The in-process ssh backend: connects, verifies and logs in, each phase with its time limit."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.transport import paramiko_import  # noqa: F401 - before paramiko

# isort: split
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    ChannelException,
    IncompatiblePeer,
    SSHException,
)

from clusterctl.errors import TransportError
from clusterctl.nodes import Node
from clusterctl.transport import tcp
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.channels import ParamikoConnection
from clusterctl.transport.identities import Identities
from clusterctl.transport.known_hosts import KnownHosts, fingerprint, split_paths
from clusterctl.transport.patched_transport import PatchedTransport
from clusterctl.transport.proxy_jump import JumpPool, proxy_command
from clusterctl.transport.ssh_config.hops import Hop
from clusterctl.transport.ssh_config.host import (
    DEFAULT_PORT,
    FAMILIES,
    LEAST_RSA_BITS,
    HostConfig,
    local_user,
)
from clusterctl.transport.ssh_config.read import SshConfig

KEEPALIVE_S = 15
MAX_JUMPS = 8  # jump hosts that are behind jump hosts of their own
# sshd drops new connections at random while MaxStartups (10:30:100) others are logging in.
RETRY_AFTER_S = (0.3, 1.2)


def own_known_hosts() -> Path:
    """The file that --accept-new writes; the user's own files are only read."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config_home / "clusterctl" / "known_hosts"


@dataclass(frozen=True, slots=True)
class _Target:
    """One machine to connect to, with its settings from hostfile and ssh_config."""

    name: str
    host: str
    port: int
    user: str
    config: HostConfig
    identity: str | None
    known: KnownHosts
    accept_to: Path | None  # where an unknown key is written; None: it is refused
    record: bool = True


class _Dropped(Exception):
    """The server closed the connection before the end of the key exchange: worth one retry."""

    def __init__(self, phase: str, reason: str) -> None:
        super().__init__(reason)
        self.phase = phase


class _OtherTypes(Exception):
    """The host is on record, in hashed lines, with key types that were not requested."""

    def __init__(self, types: tuple[str, ...]) -> None:
        super().__init__()
        self.types = types


class ParamikoTransport:
    """Connects to nodes; one instance serves all threads of a command."""

    def __init__(self, accept_new: bool = False, *, config: SshConfig | None = None) -> None:
        self._accept_new = accept_new
        self._config = config
        self._identities = Identities()
        self._jumps = JumpPool()
        self._files: dict[Path, object] = {}
        self._known: dict[tuple[Path, ...], KnownHosts] = {}
        self._lock = threading.Lock()

    def connect(self, node: Node, limits: Limits, progress: Progress) -> ParamikoConnection:
        """See `base.Transport`. A jump host on the way gets the same limits once more."""
        progress.enter("resolve")
        target = self._target(
            node.name, node.address, node.port, node.user, node.identity, dict(node.labels)
        )
        return ParamikoConnection(self._open(target, limits, progress, ()), limits, progress)

    def _target(
        self,
        name: str,
        address: str,
        port: int | None,
        user: str | None,
        identity: str | None,
        labels: dict[str, str],
    ) -> _Target:
        with self._lock:
            if self._config is None:
                self._config = SshConfig.of_user()
        config = self._config.resolve(address, user, port)
        strict = (config.strict_host_keys or "ask").lower()
        own = own_known_hosts()
        if "known_hosts" in labels:
            # Only the file made for these nodes counts: an entry elsewhere for the same address and
            # port may be of another host (loopback ports are reused).
            own = Path(labels["known_hosts"]).expanduser()
            paths = [own]
        else:
            home = Path.home() / ".ssh"
            paths = [home / "known_hosts", home / "known_hosts2"]
            if config.user_known_hosts is not None:
                paths = split_paths(config.user_known_hosts)
            if config.global_known_hosts is not None:
                paths += split_paths(config.global_known_hosts)
            else:
                paths += [Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2")]
            paths.append(own)
        # A changed key is refused all the same. With `UserKnownHostsFile none` ssh cannot record a
        # new key and refuses it.
        configured = strict in ("accept-new", "no", "off") and config.user_known_hosts != ("none",)
        accept = self._accept_new or configured
        return _Target(
            name=name,
            host=config.hostname,
            port=config.port or DEFAULT_PORT,
            user=config.user or local_user(),
            config=config,
            identity=identity,
            known=self._known_hosts(tuple(paths)),
            accept_to=own if accept else None,
            # UserKnownHostsFile /dev/null means: record nothing.
            record=self._accept_new or config.user_known_hosts != ("/dev/null",),
        )

    def _known_hosts(self, paths: tuple[Path, ...]) -> KnownHosts:
        with self._lock:
            if paths not in self._known:
                self._known[paths] = KnownHosts(paths, self._files)  # type: ignore[arg-type]
            return self._known[paths]

    def _open(
        self, target: _Target, limits: Limits, progress: Progress, via: tuple[tuple[Hop, ...], ...]
    ) -> PatchedTransport:
        """A logged-in connection; tried twice when the server closes it during the handshake."""
        types: tuple[str, ...] | None = None
        dropped = False
        while True:  # at most one retry for each of the two reasons
            try:
                return self._open_once(target, limits, progress, via, types)
            except _OtherTypes as recorded:
                types = recorded.types
                progress.notes.append(f"hostkey: requested again with {', '.join(types)}")
            except _Dropped as error:
                if dropped:
                    hint = "sshd's MaxStartups may be too low for so many logins at once: try -f 8"
                    raise TransportError(error.phase, f"{error} (twice)", hint=hint) from None
                dropped = True
                pause_s = random.uniform(*RETRY_AFTER_S)
                progress.notes.append(f"{error.phase}: {error}; retried after {pause_s:.1f} s")
                time.sleep(pause_s)
                limits = replace(limits, handshake_s=max(0.5, limits.handshake_s - pause_s))

    def _open_once(
        self,
        target: _Target,
        limits: Limits,
        progress: Progress,
        via: tuple[tuple[Hop, ...], ...],
        types: tuple[str, ...] | None,
    ) -> PatchedTransport:
        sock, give_back = self._socket(target, limits, progress, via)
        progress.enter("banner")
        deadline = time.monotonic() + limits.handshake_s
        transport: PatchedTransport | None = None
        try:
            transport = PatchedTransport(sock, on_banner=lambda: progress.enter("kex"))
            transport.at_close(give_back)
            asked = target.known.types(*_known_as(target)) if types is None else types
            transport.limit(target.config.algorithms)
            transport.prefer_host_keys(asked)
            _negotiate(transport, deadline, limits, progress)
            progress.enter("hostkey")
            self._verify(transport, target, progress, None if types is not None else asked)
            progress.enter("auth")
            self._login(transport, target, deadline, limits)
        except BaseException:
            if transport is None:
                sock.close()
                give_back()
            else:
                transport.close()
            raise
        transport.set_keepalive(target.config.keepalive_s or KEEPALIVE_S)
        return transport

    def _socket(
        self, target: _Target, limits: Limits, progress: Progress, via: tuple[tuple[Hop, ...], ...]
    ) -> tuple[socket.socket, Callable[[], None]]:
        """A byte stream to the target, and the function that releases what it goes through."""
        config = target.config
        if config.proxy_command:
            progress.enter("tcp")
            return proxy_command(config.proxy_command)
        if config.proxy_jump:
            return self._through(target, config.proxy_jump, limits, progress, via)
        deadline = time.monotonic() + limits.tcp_s
        family = FAMILIES[config.address_family or "any"]
        candidates = tcp.addresses(target.host, target.port, deadline, limits, family)
        progress.enter("tcp")
        return tcp.connect(candidates, target.port, deadline, limits), lambda: None

    def _through(
        self,
        target: _Target,
        hops: tuple[Hop, ...],
        limits: Limits,
        progress: Progress,
        via: tuple[tuple[Hop, ...], ...],
    ) -> tuple[socket.socket, Callable[[], None]]:
        """A channel to the target from the last of its jump hosts."""
        *before, last = hops
        if hops in via or len(via) > MAX_JUMPS:
            loop = " -> ".join(hop.host for way in (*via, hops) for hop in way)
            raise TransportError("resolve", f"ProxyJump loop: {loop}")
        gate = self._target(last.host, last.host, last.port, last.user, None, {})
        if before:
            config = replace(gate.config, proxy_jump=tuple(before), proxy_command=None)
            gate = replace(gate, config=config)

        def connect() -> PatchedTransport:
            try:
                return self._open(gate, limits, progress, (*via, hops))
            except TransportError as error:
                message = f"jump host {last.host}: {error}"
                raise TransportError(error.phase, message, hint=error.hint) from None

        transport, give_back = self._jumps.borrow(
            (tuple(before), gate.host, gate.port, gate.user), connect
        )
        progress.enter("tcp")
        try:
            channel = transport.open_channel(
                "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=limits.tcp_s
            )
        except (SSHException, EOFError, OSError) as error:
            give_back()
            reason = error.text if isinstance(error, ChannelException) else str(error)
            message = f"jump host {last.host} cannot reach port {target.port}: {reason}"
            raise TransportError("tcp", message) from None
        return channel, give_back  # type: ignore[return-value]

    def _verify(
        self,
        transport: PatchedTransport,
        target: _Target,
        progress: Progress,
        asked: tuple[str, ...] | None,
    ) -> None:
        """Check the host key. Raises `_OtherTypes` when types other than `asked` are on record."""
        key = transport.get_remote_server_key()
        key_type, text = key.get_name(), key.get_base64()
        bits = target.config.required_rsa_bits or LEAST_RSA_BITS
        if key_type == "ssh-rsa" and key.get_bits() < bits:
            raise TransportError("hostkey", f"the host's RSA key has fewer than {bits} bits")
        name, port = _known_as(target)
        verdict = target.known.check(name, port, key_type, text)
        if verdict.state == "changed" and asked is not None and set(verdict.types) != set(asked):
            raise _OtherTypes(verdict.types)
        if verdict.state == "unknown" and target.accept_to is not None:
            progress.notes.append(f"hostkey: accepted {key_type} {fingerprint(text)}")
            if not target.record:
                return
            try:
                verdict = target.known.accept(target.accept_to, name, port, key_type, text)
            except OSError as error:
                raise TransportError(
                    "hostkey", f"cannot write {target.accept_to}: {error.strerror}"
                ) from None
        if verdict.state == "known":
            return
        shown = name if port == DEFAULT_PORT else f"[{name}]:{port}"
        entry = verdict.entry
        if verdict.state == "revoked" and entry is not None:
            raise TransportError("hostkey", f"the host key is revoked in {entry.where}")
        if entry is not None:  # changed, or on record only with other types
            raise TransportError(
                "hostkey",
                f"the host key has changed: {entry.where} has {entry.key_type} "
                f"{fingerprint(entry.key)}, the node shows {key_type} {fingerprint(text)}",
                hint=f"if the node was reinstalled: ssh-keygen -R '{shown}' -f {entry.path}, "
                "then once --accept-new",
            )
        if verdict.authority is not None:
            raise TransportError(
                "hostkey",
                f"{verdict.authority.where}: this backend cannot check a @cert-authority",
                hint="run once with --accept-new to record the host key itself",
            )
        progress.notes.append(f"hostkey: the node shows {key_type} {fingerprint(text)}")
        option = "" if target.port == DEFAULT_PORT else f"-p {target.port} "
        hint = "on first contact run the same command once with --accept-new"
        if name == target.host:  # not an alias, which ssh-keyscan would not write
            kind = key_type.removeprefix("ssh-")
            hint += f", or: ssh-keyscan -t {kind} {option}{name} >> ~/.ssh/known_hosts"
        raise TransportError("hostkey", f"unknown host key ({key_type})", hint=hint)

    def _login(
        self, transport: PatchedTransport, target: _Target, deadline: float, limits: Limits
    ) -> None:
        offer = self._identities.offer(target.config, target.identity)
        refused, stopped = [], ""
        for identity in offer.identities:
            if not transport.may_offer(identity.key):
                offer.problems.append(f"PubkeyAcceptedAlgorithms excludes {identity.name}")
                continue
            transport.auth_timeout = max(0.1, deadline - time.monotonic())
            try:
                more = transport.auth_publickey(target.user, identity.key)
            except BadAuthenticationType as error:
                stopped = f"the node accepts only {', '.join(error.allowed_types)}"
                break
            except AuthenticationException as error:
                if time.monotonic() >= deadline:
                    raise TransportError(
                        "auth", f"no answer to the login within {limits.handshake_s:g} s"
                    ) from None
                refused.append(identity.name)
                if not transport.is_active():
                    stopped = f"the node closed the connection: {error}"
                    break
                continue
            except (SSHException, EOFError, OSError) as error:
                refused.append(identity.name)
                stopped = f"the node closed the connection: {error}"
                break
            if not more:
                return
            stopped = f"the node requires more than a key: {', '.join(more)}"
            break
        raise _refusal(target, refused, [stopped] if stopped else [], offer.problems)


def _known_as(target: _Target) -> tuple[str, int]:
    """Name and port under which the host's key is on record; an alias has no port."""
    alias = target.config.host_key_alias
    return (alias, DEFAULT_PORT) if alias else (target.host, target.port)


def _negotiate(
    transport: PatchedTransport, deadline: float, limits: Limits, progress: Progress
) -> None:
    try:
        transport.negotiate(deadline)
    except TimeoutError:
        late = "no ssh banner" if progress.phase == "banner" else "key exchange not finished"
        raise TransportError(progress.phase, f"{late} within {limits.handshake_s:g} s") from None
    except IncompatiblePeer as error:
        raise TransportError(progress.phase, str(error)) from None
    except (EOFError, ConnectionError) as error:
        raise _Dropped(progress.phase, _hung_up(progress, error)) from None
    except (SSHException, OSError) as error:
        if progress.phase == "banner" and "reading SSH protocol banner" in str(error):
            raise _Dropped("banner", _hung_up(progress, None)) from None
        raise TransportError(progress.phase, f"the ssh handshake failed: {error}") from None


def _hung_up(progress: Progress, error: BaseException | None) -> str:
    reset = " (reset)" if isinstance(error, ConnectionResetError) else ""
    what = "before its banner" if progress.phase == "banner" else "during key exchange"
    return f"the node closed the connection {what}{reset}"


def _refusal(
    target: _Target, refused: list[str], stopped: list[str], problems: list[str]
) -> TransportError:
    if refused:
        sentence = f"refused for user {target.user}: {', '.join(refused)}"
    else:
        sentence = f"no key to log in as {target.user}"
    port = "" if target.port == DEFAULT_PORT else f"-p {target.port} "
    return TransportError(
        "auth",
        "; ".join([sentence, *stopped, *problems]),
        hint=f"ssh-copy-id {port}{target.user}@{target.host}, or name a key: identity=PATH",
    )
