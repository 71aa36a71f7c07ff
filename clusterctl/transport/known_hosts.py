"""Which host keys are known: known_hosts files parsed once and indexed by name and by key.

By hand because paramiko's `HostKeys` costs 0.3 ms a line to load and 46 ms for one hashed lookup in
1,000 lines (47 s for 1,000 nodes), and gives up on a file that holds a @cert-authority line.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import math
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from clusterctl.transport.public_keys import is_key_of
from clusterctl.transport.ssh_config.host import DEFAULT_PORT
from clusterctl.transport.ssh_config.patterns import host_matches
from trainer.runlog.locks import NoLocks, hold

# In a host's name these would make the line match other hosts: not written, as by OpenSSH.
_NEVER_WRITTEN = frozenset("@?*#[]|'\"\\")
_SALT_BYTES = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file; `key` is its key in base64."""

    path: Path
    line: int
    names: str
    key_type: str
    key: str
    marker: str = ""  # "revoked" or "cert-authority"

    @property
    def where(self) -> str:
        return f"{self.path} line {self.line}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state` is known, unknown, changed or revoked; `entry` is the line that decided."""

    state: str
    entry: Entry | None = None
    types: tuple[str, ...] = ()  # those on record, where the key is not
    authority: Entry | None = None  # a @cert-authority line that covers the host
    unread: str = ""  # a file that may hold the key and cannot be read, and why


def lookup_name(host: str, port: int) -> str:
    """The name under which OpenSSH stores a host: `[host]:port` unless the port is 22."""
    return host.lower() if port == DEFAULT_PORT else f"[{host.lower()}]:{port}"


def fingerprint(key: str) -> str:
    """SHA256:… of a base64 key, as ssh-keygen prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class File:
    """The index of one file. Plain names are a dict; a hashed line is found by the key it holds."""

    def __init__(self, path: Path) -> None:
        self.plain: dict[str, list[Entry]] = {}
        self.patterns: list[Entry] = []  # wildcards and negations
        self.hashed: dict[str, list[Entry]] = {}  # by key
        self._hashed_names: dict[str, list[Entry]] = {}
        data, self.unread = b"", ""
        try:
            if path.is_fifo():
                self.unread = f"{path} is a pipe"  # which is not waited for
            else:
                data = path.read_bytes()
        except FileNotFoundError:
            pass  # every key is unknown
        except OSError as error:
            self.unread = f"{path} cannot be read ({error.strerror})"
        text = data.decode(errors="surrogateescape")
        for number, line in enumerate(text.split("\n"), 1):
            entry = parse_line(line, path, number)
            if entry is None:
                continue
            if entry.names.startswith("|"):
                self.hashed.setdefault(entry.key, []).append(entry)
            elif any(mark in entry.names for mark in "*?!"):
                self.patterns.append(entry)
            else:
                for name in entry.names.lower().split(","):
                    self.plain.setdefault(name, []).append(entry)

    def find_plain(self, name: str) -> list[Entry]:
        patterns = [entry for entry in self.patterns if host_matches(name, entry.names)]
        return [*self.plain.get(name, ()), *patterns]

    def find(self, name: str, key: str | None) -> list[Entry]:
        """Entries for a name. With `key`, hashed lines are tried only where they hold that key."""
        found = self.find_plain(name)
        if key is not None:
            return found + [e for e in self.hashed.get(key, ()) if _hash_matches(e.names, name)]
        if name not in self._hashed_names:
            every = sorted(chain.from_iterable(self.hashed.values()), key=lambda e: e.line)
            self._hashed_names[name] = [e for e in every if _hash_matches(e.names, name)]
        return found + self._hashed_names[name]


def parse_line(line: str, path: Path, number: int) -> Entry | None:
    """One line of a known_hosts file; None for a comment and for what OpenSSH skips."""
    words = re.split("[ \t]+", line.rstrip("\r").strip(" \t"))  # not at form feeds
    marker = ""
    if words[0].startswith("@"):
        marker = words.pop(0)[1:]
        if marker not in ("revoked", "cert-authority"):
            return None
    if len(words) < 3 or words[0].startswith("#"):
        return None
    names, key_type, text, *_ = words
    try:
        blob = base64.b64decode(text.rstrip("\r"), validate=True)
    except ValueError:
        return None
    key = base64.b64encode(blob).decode()  # the canonical form
    return Entry(path, number, names, key_type, key, marker) if is_key_of(key_type, blob) else None


def _hash_matches(names: str, name: str) -> bool:
    try:
        _, version, salt_text, digest = names.split("|")
        salt = base64.b64decode(salt_text)
    except ValueError:
        return False
    if version != "1" or len(salt) != _SALT_BYTES:
        return False
    made = base64.b64encode(hmac.digest(salt, name.encode(errors="surrogateescape"), "sha1"))
    return hmac.compare_digest(made, digest.encode(errors="surrogateescape"))


class Files(dict[Path, File]):
    """Parsed files, shared by `KnownHosts` with overlapping paths."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __missing__(self, path: Path) -> File:
        return self.setdefault(path, File(path))


class KnownHosts:
    """Several files as one. Safe to use from many threads; files are read on the first lookup."""

    def __init__(self, paths: Iterable[Path], files: Files | None = None) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._files = Files() if files is None else files
        self._lock = self._files.lock

    def _all(self) -> list[File]:
        return [self._files[path] for path in self._paths]

    def types(self, host: str, port: int) -> tuple[str, ...]:
        """Key types on record in plain lines: a client asks for these first, as OpenSSH does."""
        name = lookup_name(host, port)
        with self._lock:
            return _types([entry for file in self._all() for entry in file.find_plain(name)])

    def check(self, host: str, port: int, key_type: str, key: str) -> Verdict:
        """Whether `key` (base64) is on record; a revoked one counts as revoked in any case.

        A host without a line for its port is looked up again without the port, as by OpenSSH; only
        a line with the same key counts there.
        """
        with self._lock:
            verdict = self._check(lookup_name(host, port), key_type, key)
            if verdict.state != "unknown" or port == DEFAULT_PORT:
                return verdict
            without_port = self._check(lookup_name(host, DEFAULT_PORT), key_type, key)
            return without_port if without_port.state in ("known", "revoked") else verdict

    def _check(self, name: str, key_type: str, key: str) -> Verdict:
        files = self._all()
        same = [entry for file in files for entry in file.find(name, key) if entry.key == key]
        for marker, state in (("revoked", "revoked"), ("", "known")):
            found = next((entry for entry in same if entry.marker == marker), None)
            if found:
                return Verdict(state, found)
        # Only now are all hashed lines searched, to tell changed from unknown.
        others = [entry for file in files for entry in file.find(name, None)]
        authority = next((e for e in others if e.marker == "cert-authority"), None)
        plain = [entry for entry in others if not entry.marker]
        if not plain:
            unread = next((file.unread for file in files if file.unread), "")
            return Verdict("unknown", authority=authority, unread=unread)
        entry = min(plain, key=lambda entry: entry.key_type != key_type)
        return Verdict("changed", entry, _types(others), authority)

    def accept(self, path: Path, host: str, port: int, key_type: str, key: str) -> Verdict:
        """Append a new host to `path` (0600, locked) and read it again. Raises `OSError`.

        The file decides: another process may have written it. A name with wildcards stays unknown.
        """
        if set(host) & _NEVER_WRITTEN:
            return Verdict("unknown")
        name = lookup_name(host, port)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(NoLocks):  # of a home: a line is added in one piece
                hold(descriptor, math.inf)
            fresh = KnownHosts([path])
            verdict = fresh.check(host, port, key_type, key)
            if verdict.state == "unknown":
                size = os.fstat(descriptor).st_size
                newline = "\n" if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n" else ""
                os.write(descriptor, f"{newline}{name} {key_type} {key}\n".encode())
                fresh = KnownHosts([path])
                verdict = fresh.check(host, port, key_type, key)
        finally:
            os.close(descriptor)
        with self._lock:
            self._files[path] = fresh._files[path]
        return verdict


def _types(entries: list[Entry]) -> tuple[str, ...]:
    """Types of the keys that are trusted among `entries`."""
    revoked = {entry.key for entry in entries if entry.marker == "revoked"}
    trusted = [entry for entry in entries if not entry.marker and entry.key not in revoked]
    return tuple(dict.fromkeys(entry.key_type for entry in trusted))
