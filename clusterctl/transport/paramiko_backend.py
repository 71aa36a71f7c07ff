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

from checks import units
from clusterctl.defaults import config_folder
from clusterctl.errors import TransportError
from clusterctl.hostfile_hints import KNOWN_HOSTS
from clusterctl.nodes import Node
from clusterctl.transport import tcp
from clusterctl.transport.base import Limits, Progress
from clusterctl.transport.channels import ParamikoConnection
from clusterctl.transport.identities import Identities
from clusterctl.transport.known_hosts import Files, KnownHosts
from clusterctl.transport.login import OtherTypes, Target, Types, log_in, verify
from clusterctl.transport.paramiko_import import BROKEN, paramiko
from clusterctl.transport.patched_transport import PatchedTransport
from clusterctl.transport.proxy_jump import JumpPool, proxy_command
from clusterctl.transport.ssh_config.host import DEFAULT_PORT, FAMILIES, local_user
from clusterctl.transport.ssh_config.read import SshConfig
from clusterctl.transport.ssh_config.values import Hop

_SYSTEM = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
KEEPALIVE_S = 15
MAX_JUMPS = 8  # jump hosts behind other jump hosts
# sshd drops new connections at random while MaxStartups (10:30:100) others are logging in.
RETRY_AFTER_S = (0.3, 1.2)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one connection is opened; `jumps` are the ProxyJump lines that led to it."""

    limits: Limits
    progress: Progress
    jumps: tuple[tuple[Hop, ...], ...] = ()


class _Dropped(Exception):
    """The server closed the connection before the end of the key exchange: worth one retry."""

    def __init__(self, phase: str, error: BaseException | None) -> None:
        reset = " (reset)" if isinstance(error, ConnectionResetError) else ""
        when = "before its banner" if phase == "banner" else "during key exchange"
        super().__init__(f"the node closed the connection {when}{reset}")
        self.phase = phase


class ParamikoTransport:
    """Connects to nodes; one instance serves all threads of a command."""

    def __init__(self, accept_new: bool = False, *, config: SshConfig | None = None) -> None:
        self._accept_new, self._config = accept_new, config
        self._identities, self._jumps, self._files = Identities(), JumpPool(), Files()
        self._lock = threading.Lock()

    def connect(self, node: Node, limits: Limits, progress: Progress) -> ParamikoConnection:
        """See `base.Transport`. A jump host on the way gets the same limits once more."""
        progress.enter("resolve")
        transport = self._open(self._target(node), _Way(limits, progress))
        return ParamikoConnection(transport, limits, progress)

    def _target(self, node: Node) -> Target:
        with self._lock:
            if self._config is None:
                self._config = SshConfig.of_user()
        config = self._config.resolve(node.address, node.user, node.port)
        labels = dict(node.labels)
        if KNOWN_HOSTS in labels:
            # Only the file made for these nodes counts: an entry elsewhere for the same address and
            # port may be of another host (loopback ports are reused).
            own = Path(os.path.expanduser(labels[KNOWN_HOSTS]))  # noqa: PTH111
            paths = [own]
        else:
            # The file that --accept-new writes; the user's own files are only read.
            own = config_folder() / "known_hosts"
            mine, system = config.user_known_hosts, config.global_known_hosts
            if mine is None:
                mine = tuple(f"{Path.home()}/.ssh/known_hosts{suffix}" for suffix in ("", "2"))
            words = [*mine, *(_SYSTEM if system is None else system)]
            # `none` and /dev/null mean no file.
            paths = [Path(word) for word in words if word not in ("none", os.devnull)]
            paths.append(own)
        # A changed key is refused all the same. With `UserKnownHostsFile none` ssh cannot record a
        # new key and refuses it.
        is_lax = config.strict_host_keys in ("accept-new", "no", "off")
        configured = is_lax and config.user_known_hosts != ("none",)
        return Target(
            host=config.hostname,
            port=config.port or DEFAULT_PORT,
            user=config.user or local_user(),
            config=config,
            identity=node.identity,
            known=KnownHosts(paths, self._files),
            accept_to=own if self._accept_new or configured else None,
            # UserKnownHostsFile /dev/null means: record nothing.
            record=self._accept_new or config.user_known_hosts != (os.devnull,),
        )

    def _open(self, target: Target, way: _Way) -> PatchedTransport:
        """A logged-in connection; tried twice when the server closes it during the handshake."""
        types, dropped, progress = None, False, way.progress
        while True:  # at most one retry for each of the two reasons
            try:
                return self._open_once(target, way, types)
            except OtherTypes as recorded:
                types = recorded.types
                progress.notes.append(f"hostkey: requested again with {', '.join(types)}")
            except _Dropped as error:
                if dropped:
                    hint = "sshd's MaxStartups may be too low for so many logins at once: try -f 8"
                    raise TransportError(error.phase, f"{error} (twice)", hint=hint) from None
                dropped = True
                pause_s = random.uniform(*RETRY_AFTER_S)
                progress.notes.append(
                    f"{error.phase}: {error}; retried after {units.duration(pause_s)}"
                )
                time.sleep(pause_s)
                left_s = max(0.5, way.limits.handshake_s - pause_s)
                way = replace(way, limits=replace(way.limits, handshake_s=left_s))

    def _open_once(self, target: Target, way: _Way, types: Types) -> PatchedTransport:
        """With `types`, request host keys of these types only."""
        progress = way.progress
        sock, release = self._socket(target, way)
        progress.enter("banner")
        deadline = time.monotonic() + way.limits.handshake_s
        transport = PatchedTransport(sock, lambda: progress.enter("kex"), release)
        try:
            recorded = target.known.types(*target.known_as) if types is None else types
            transport.limit(target.config.algorithms)
            transport.prefer_host_keys(recorded)
            _negotiate(transport, deadline, way)
            progress.enter("hostkey")
            verify(transport, target, progress, None if types is not None else recorded)
            progress.enter("auth")
            log_in(transport, target, self._identities, deadline, way.limits)
        except BaseException:
            transport.close()
            raise
        transport.set_keepalive(target.config.keepalive_s or KEEPALIVE_S)
        return transport

    def _socket(self, target: Target, way: _Way) -> tuple[socket.socket, Callable[[], None]]:
        """A byte stream to the target, and the function that releases what it goes through."""
        config, limits = target.config, way.limits
        if config.proxy_command:
            way.progress.enter("tcp")
            return proxy_command(config.proxy_command)
        if config.proxy_jump:
            return self._through(target, config.proxy_jump, way)
        deadline = time.monotonic() + limits.tcp_s
        family = FAMILIES[config.address_family or "any"]
        candidates = tcp.addresses(target.host, target.port, deadline, limits, family)
        way.progress.enter("tcp")
        return tcp.connect(candidates, target.port, deadline, limits), lambda: None

    def _through(
        self, target: Target, hops: tuple[Hop, ...], way: _Way
    ) -> tuple[socket.socket, Callable[[], None]]:
        """A channel to the target from the last of its jump hosts."""
        *before, last = hops
        if hops in way.jumps or len(way.jumps) > MAX_JUMPS:
            loop = " -> ".join(hop.host for jump in (*way.jumps, hops) for hop in jump)
            raise TransportError("resolve", f"ProxyJump loop: {loop}")
        # As the host, which ssh's rule for names is for: no name of a node.
        gate = self._target(Node("jump", host=last.host, port=last.port, user=last.user))
        if before:
            config = replace(gate.config, proxy_jump=tuple(before), proxy_command=None)
            gate = replace(gate, config=config)

        def connect() -> PatchedTransport:
            try:
                return self._open(gate, replace(way, jumps=(*way.jumps, hops)))
            except TransportError as error:
                message = f"jump host {last.host}: {error}"
                raise TransportError(error.phase, message, hint=error.hint) from None

        key = (tuple(before), gate.host, gate.port, gate.user)
        transport, release = self._jumps.borrow(key, connect)
        way.progress.enter("tcp")
        there, here, timeout_s = (target.host, target.port), ("127.0.0.1", 0), way.limits.tcp_s
        try:
            channel = transport.open_channel("direct-tcpip", there, here, timeout=timeout_s)
        except BROKEN as error:
            release()
            reason = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            message = f"jump host {last.host} cannot reach port {target.port}: {reason}"
            raise TransportError("tcp", message) from None
        return channel, release  # type: ignore[return-value]


def _negotiate(transport: PatchedTransport, deadline: float, way: _Way) -> None:
    progress = way.progress
    try:
        transport.negotiate(deadline)
    except TimeoutError:
        late = "no ssh banner" if progress.phase == "banner" else "key exchange not finished"
        message = f"{late} within {units.duration(way.limits.handshake_s)}"
    except paramiko.ssh_exception.IncompatiblePeer as error:
        message = str(error)
    except (EOFError, ConnectionError) as error:
        raise _Dropped(progress.phase, error) from None
    except (paramiko.SSHException, OSError) as error:
        if progress.phase == "banner" and "reading SSH protocol banner" in str(error):
            raise _Dropped("banner", None) from None
        message = f"the ssh handshake failed: {error}"
    else:
        return
    raise TransportError(progress.phase, message)
