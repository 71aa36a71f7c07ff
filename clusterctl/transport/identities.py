"""Keys to log in with: files parsed once, agents queried once, in the order of OpenSSH."""

from __future__ import annotations

import copy
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.transport.paramiko_import import BROKEN, paramiko
from clusterctl.transport.public_keys import CERTIFICATE, certified_blob, key_type, public_blob
from clusterctl.transport.ssh_config.host import LEAST_RSA_BITS, HostConfig

DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
AGENT_TIMEOUT_S = 7.0
# sshd closes a connection after MaxAuthTries (6) refused keys without a reason.
MAX_KEYS = 6
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    key: paramiko.PKey


@dataclass(slots=True)
class Offer:
    """Keys to try, in order, and messages about keys that cannot be used."""

    identities: list[Identity] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


_AgentSSH: Any = paramiko.agent.AgentSSH  # its type stubs leave out the names used here


class _LockedAgent(paramiko.agent.AgentSSH):
    """paramiko's agent uses its socket without a lock; here many threads sign at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._lock = threading.Lock()
        super().__init__()
        _AgentSSH._connect(self, connection)

    def _send_message(self, msg: Any) -> Any:
        with self._lock:
            return _AgentSSH._send_message(self, msg)


class Identities:
    """All keys of this process, read on first use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, paramiko.PKey | str] = {}
        self._publics: dict[Path, bytes | None] = {}
        self._agents: dict[str, tuple[list[Identity], str | None]] = {}

    def offer(self, config: HostConfig, explicit: str | None) -> Offer:
        """Keys for one host. `explicit` is the hostfile's identity=, which is tried first."""
        offer = Offer()
        agent_keys, problem = self._agent(config.identity_agent)
        offer.problems += [problem] if problem else []
        files = [Path(os.path.expanduser(explicit))] if explicit else []  # noqa: PTH111
        files += [Path(name) for name in config.identity_files or ()]
        if not files and config.identity_files is None:
            files = [Path.home() / ".ssh" / name for name in DEFAULT_NAMES]
            files = [path for path in files if path.exists()]
        in_agent = {_blob(identity.key): identity for identity in agent_keys}
        first, last = [], []
        for path in files:
            held = in_agent.pop(self._cached(self._publics, path, public_blob) or b"", None)
            if held is not None:
                first.append(held)  # also where the file needs a passphrase
                continue
            loaded = self._cached(self._files, path, _load)
            bits = config.required_rsa_bits or LEAST_RSA_BITS
            if isinstance(loaded, str):
                offer.problems.append(loaded)
            elif loaded.get_name() == "ssh-rsa" and loaded.get_bits() < bits:
                offer.problems.append(f"{path} has fewer than {bits} bits")
            elif explicit and path == files[0]:
                first.append(Identity(str(path), loaded))
            else:
                last.append(Identity(str(path), loaded))
        others = [] if config.identities_only else list(in_agent.values())
        plain = [*first, *others, *last]
        certified = self._certified(config, files, plain, offer.problems)
        offer.identities = [*certified, *plain]
        left_out = len(offer.identities) - MAX_KEYS
        if left_out > 0:
            offer.problems.append(f"{left_out} more keys not tried: sshd allows {MAX_KEYS}")
            # Files that were named come before agent keys that were not.
            offer.identities = [*certified, *first, *last, *others][:MAX_KEYS]
        return offer

    def _certified(
        self, config: HostConfig, files: list[Path], known: list[Identity], problems: list[str]
    ) -> list[Identity]:
        """The known keys with their certificates: those named, else those beside the keys."""
        named = [Path(name) for name in config.certificate_files]
        by_public = {_blob(identity.key): identity for identity in reversed(known)}
        certified = []
        for path in named or [Path(f"{path}-cert") for path in files]:
            blob = self._cached(self._publics, path, public_blob)
            about = certified_blob(blob) if blob is not None else None
            if blob is None or about is None:
                if named:
                    problems.append(f"CertificateFile {path} is not a readable certificate")
            elif about not in by_public:
                problems.append(f"the certificate {path} belongs to none of the keys")
            else:
                certified.append(Identity(str(path), _with_certificate(by_public[about].key, blob)))
        return certified

    def _agent(self, wanted: str | None) -> tuple[list[Identity], str | None]:
        """Keys of the agent at `wanted` (IdentityAgent) or $SSH_AUTH_SOCK, and what went wrong."""
        socket_path = "$SSH_AUTH_SOCK" if wanted in (None, "SSH_AUTH_SOCK") else wanted or ""
        if socket_path.startswith("$"):
            socket_path = os.environ.get(socket_path[1:], "")
        if socket_path in ("", "none"):
            return [], None
        return self._cached(self._agents, socket_path, _query_agent)

    def _cached(self, known: dict[K, V], key: K, read: Callable[[K], V]) -> V:
        with self._lock:
            if key not in known:
                known[key] = read(key)
            return known[key]


def _load(path: Path) -> paramiko.PKey | str:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            return f"{path} is no plain file"
        key = paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (TypeError, paramiko.PasswordRequiredException):
        # cryptography raises TypeError for a key that is encrypted when no passphrase is given
        return f"{path} needs a passphrase and is not in an agent: ssh-add {path}"
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        if path.suffix == ".pub":
            return f"{path} is a public key, and no agent holds its private half"
        return f"{path} is not a usable private key: {error}"
    key.public_blob = None  # a certificate beside the key is offered separately
    return key


def _blob(key: paramiko.PKey) -> bytes:
    """The public key; of an agent's key, perhaps its certificate."""
    return key.blob if isinstance(key, paramiko.AgentKey) else key.asbytes()


def _with_certificate(key: paramiko.PKey, certificate: bytes) -> paramiko.PKey:
    """A copy of the key that shows a certificate; keys are shared between threads."""
    if isinstance(key, paramiko.AgentKey):
        shown: Any = paramiko.AgentKey(key.agent, key.blob, key.comment)
    else:
        shown = copy.copy(key)
    shown.public_blob = paramiko.pkey.PublicBlob(key_type(certificate), certificate)
    return shown  # type: ignore[no-any-return]


def _query_agent(socket_path: str) -> tuple[list[Identity], str | None]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(AGENT_TIMEOUT_S)  # paramiko's own opening has no limit
    try:
        connection.connect(socket_path)
        keys = _LockedAgent(connection).get_keys()
    except BROKEN as error:
        connection.close()
        return [], f"the ssh agent at {socket_path} does not answer: {error}"
    for key in keys:
        if key.get_name().endswith(CERTIFICATE):  # paramiko alone would show the plain key instead
            shown: Any = key
            shown.public_blob = paramiko.pkey.PublicBlob(key.get_name(), _blob(key))
    return [Identity(f"agent:{key.comment or key.get_name()}", key) for key in keys], None
