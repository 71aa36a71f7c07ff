"""Keys to log in with: files parsed once, agents asked once, in the order OpenSSH offers them."""

from __future__ import annotations

import base64
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.transport import lean  # noqa: F401 - first of all

# isort: split
from paramiko.agent import AgentSSH
from paramiko.pkey import PKey, UnknownKeyType
from paramiko.ssh_exception import PasswordRequiredException, SSHException

from clusterctl.transport.ssh_host import HostConfig

DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
AGENT_TIMEOUT_S = 7.0
# sshd cuts a connection after MaxAuthTries (6) refused keys, and names no reason.
MAX_KEYS = 6


@dataclass(frozen=True, slots=True)
class Identity:
    """A key with the name people know it by."""

    name: str
    key: PKey


@dataclass(slots=True)
class Offer:
    """What to try, in order, and sentences about keys that cannot be used."""

    identities: list[Identity] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


_AgentSSH: Any = AgentSSH  # its type stubs leave out the names used here


class _LockedAgent(AgentSSH):
    """paramiko's agent writes and reads one socket without a lock; many threads sign at once here."""

    def __init__(self, connection: socket.socket) -> None:
        self._lock = threading.Lock()
        super().__init__()
        _AgentSSH._connect(self, connection)

    def _send_message(self, msg: Any) -> Any:
        with self._lock:
            return _AgentSSH._send_message(self, msg)


class Identities:
    """All keys of this process. Safe for threads; nothing is read before it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, PKey | str] = {}
        self._agents: dict[str, tuple[list[Identity], str | None]] = {}

    def offer(self, config: HostConfig, explicit: str | None) -> Offer:
        """Keys for one host. `explicit` is the hostfile's identity=, which is tried first."""
        offer = Offer()
        agent_keys, problem = self._agent(config.identity_agent)
        if problem:
            offer.problems.append(problem)
        files = [Path(explicit).expanduser()] if explicit else []
        files += [Path(name) for name in config.identity_files or ()]
        if not files and config.identity_files is None:
            files = [Path.home() / ".ssh" / name for name in DEFAULT_NAMES]
            files = [path for path in files if path.exists()]
        in_agent = {identity.key.asbytes(): identity for identity in agent_keys}
        first, last = [], []
        for path in files:
            public = _public_blob(path)
            if public is not None and public in in_agent:
                first.append(in_agent.pop(public))  # also where the file needs a passphrase
                continue
            loaded = self._file(path)
            if isinstance(loaded, str):
                offer.problems.append(loaded)
            elif explicit and path == files[0]:
                first.append(Identity(str(path), loaded))
            else:
                last.append(Identity(str(path), loaded))
        others = [] if config.identities_only else list(in_agent.values())
        offer.identities = [*first, *others, *last]
        if len(offer.identities) > MAX_KEYS:
            left_out = len(offer.identities) - MAX_KEYS
            offer.problems.append(f"{left_out} more keys not tried: sshd cuts after {MAX_KEYS}")
            # Files that were named come before agent keys that were not.
            offer.identities = [*first, *last, *others][:MAX_KEYS]
        return offer

    def _file(self, path: Path) -> PKey | str:
        """The key in a file, or the sentence that says why there is none."""
        with self._lock:
            if path not in self._files:
                self._files[path] = _load(path)
            return self._files[path]

    def _agent(self, wanted: str | None) -> tuple[list[Identity], str | None]:
        """Keys of the agent at `wanted` (IdentityAgent) or $SSH_AUTH_SOCK, and what went wrong."""
        socket_path = wanted
        if socket_path is None or socket_path == "SSH_AUTH_SOCK":
            socket_path = os.environ.get("SSH_AUTH_SOCK", "")
        if socket_path in ("", "none"):
            return [], None
        with self._lock:
            if socket_path not in self._agents:
                self._agents[socket_path] = _ask_agent(socket_path)
            return self._agents[socket_path]


def _load(path: Path) -> PKey | str:
    try:
        return PKey.from_path(path)
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (TypeError, PasswordRequiredException):
        # cryptography raises TypeError for a key that is encrypted when no passphrase is given
        return f"{path} needs a passphrase and is in no agent: ssh-add {path}"
    except (ValueError, SSHException, UnknownKeyType) as error:
        return f"{path} is no usable private key: {error}"


def _public_blob(path: Path) -> bytes | None:
    """The public half beside a private key, which tells whether an agent holds it."""
    try:
        words = Path(f"{path}.pub").read_text(encoding="utf-8").split()
        return base64.b64decode(words[1])
    except (OSError, ValueError, IndexError):
        return None


def _ask_agent(socket_path: str) -> tuple[list[Identity], str | None]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(AGENT_TIMEOUT_S)  # paramiko's own opening has no limit
    try:
        connection.connect(socket_path)
        keys = _LockedAgent(connection).get_keys()
    except (OSError, SSHException, EOFError) as error:
        connection.close()
        return [], f"the ssh agent at {socket_path} does not answer: {error}"
    return [Identity(f"agent:{key.comment or key.get_name()}", key) for key in keys], None
