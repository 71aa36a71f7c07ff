"""The user's ssh_config: parsed once, resolved once per host.

By hand because paramiko's `SSHConfig` ignores Include silently, raises on valid Match lines
(paramiko/paramiko #1992) and needs 67 ms for one lookup among 1,000 Host blocks.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.errors import TransportError

MAX_INCLUDE_DEPTH = 16  # OpenSSH's own limit
MATCH_EXEC_TIMEOUT_S = 10.0
_LINE = re.compile(r"^\s*([A-Za-z]\w*)(?:\s*=\s*|\s+)(.*?)\s*$")
_LISTS = ("identityfile", "certificatefile")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What ssh_config says about one host; None where it says nothing."""

    hostname: str
    port: int | None = None
    user: str | None = None
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    proxy_jump: str | None = None
    proxy_command: str | None = None
    host_key_alias: str | None = None
    user_known_hosts: tuple[str, ...] | None = None
    global_known_hosts: tuple[str, ...] | None = None
    strict_host_keys: str | None = None
    keepalive_s: int | None = None


@dataclass(frozen=True, slots=True)
class _Condition:
    """A Host or Match line."""

    words: tuple[str, ...]
    is_match: bool
    where: str

    @property
    def literals(self) -> tuple[str, ...] | None:
        """Host names without wildcards, so that the block can be found by a dict."""
        if self.is_match or any(mark in word for word in self.words for mark in "*?!"):
            return None
        return self.words


@dataclass(slots=True)
class _Section:
    conditions: tuple[_Condition, ...]  # all must hold; more than one inside an Include
    settings: list[tuple[str, list[str], str]] = field(default_factory=list)


@dataclass(slots=True)
class _Query:
    original: str
    user: str | None
    values: dict[str, list[str]]
    final: bool = False

    @property
    def hostname(self) -> str:
        return self.values.get("hostname", [self.original])[0].replace("%h", self.original)


class SshConfig:
    """Parsed ssh_config files, the user's first. `resolve` is cached and safe for threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._sections: list[_Section] = []
        self._by_name: dict[str, list[int]] = {}
        self._general: list[int] = []
        self._cache: dict[tuple[str, str | None], HostConfig] = {}
        self._lock = threading.Lock()
        for path in paths:
            self._parse(path, (), 0)
        self._index()
        self._has_final = any(
            word.lower().lstrip("!") == "final"
            for section in self._sections
            for condition in section.conditions
            if condition.is_match
            for word in condition.words
        )

    @classmethod
    def of_user(cls) -> SshConfig:
        """~/.ssh/config, then /etc/ssh/ssh_config."""
        return cls([Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")])

    def resolve(self, host: str, user: str | None = None) -> HostConfig:
        """Settings for `host`; `user` is the one already chosen, for `Match user`.

        Raises `TransportError("resolve")` for what cannot be decided or is not supported.
        """
        key = (host, user)
        with self._lock:
            known = self._cache.get(key)
        if known is None:
            known = self._resolve(host, user)
            with self._lock:
                self._cache[key] = known
        return known

    def _parse(self, path: Path, outer: tuple[_Condition, ...], depth: int) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise _problem(f"{path}: Include is nested more than {MAX_INCLUDE_DEPTH} deep")
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return  # as OpenSSH: a file that is not there says nothing
        section = _Section(outer)
        self._sections.append(section)
        for number, raw in enumerate(text.splitlines(), 1):
            where = f"{path} line {number}"
            match = _LINE.match(raw)
            if not match or raw.lstrip().startswith("#"):
                continue
            keyword = match[1].lower()
            try:
                words = shlex.split(match[2], comments=True)
            except ValueError as error:
                raise _problem(f"{where}: {error}") from None
            if keyword in ("host", "match"):
                condition = _Condition(tuple(words), keyword == "match", where)
                section = _Section((*outer, condition))
                self._sections.append(section)
            elif keyword == "include":
                for pattern in words:
                    for included in _include_paths(pattern, path):
                        self._parse(included, section.conditions, depth + 1)
                section = _Section(section.conditions)  # keeps the order of lines
                self._sections.append(section)
            elif words:
                if keyword == "proxycommand":
                    words = [match[2]]  # a shell line: its quotes are not ours
                section.settings.append((keyword, words, where))

    def _index(self) -> None:
        for number, section in enumerate(self._sections):
            if not section.settings:
                continue
            literals = next((c.literals for c in section.conditions if c.literals), None)
            if literals is None:
                self._general.append(number)
            else:
                for name in dict.fromkeys(literals):
                    self._by_name.setdefault(name, []).append(number)

    def _resolve(self, host: str, user: str | None) -> HostConfig:
        query = _Query(host, user, {})
        self._apply(query)
        if self._has_final:
            query.final = True
            query.original = query.hostname  # the second pass sees the resolved name
            self._apply(query)
            query.original = host
        return _build(query)

    def _apply(self, query: _Query) -> None:
        numbers = sorted({*self._general, *self._by_name.get(query.original, ())})
        for number in numbers:
            section = self._sections[number]
            if all(_holds(condition, query) for condition in section.conditions):
                for keyword, words, _ in section.settings:
                    if keyword in _LISTS:
                        known = query.values.setdefault(keyword, [])
                        known.extend(word for word in words if word not in known)
                    elif keyword in ("proxyjump", "proxycommand"):
                        # The two compete: whichever is said first wins.
                        if not {"proxyjump", "proxycommand"} & query.values.keys():
                            query.values[keyword] = words
                    else:
                        query.values.setdefault(keyword, words)


def _problem(message: str) -> TransportError:
    return TransportError(
        "resolve", message, hint="ssh -G NODE shows how ssh itself reads the file"
    )


def _include_paths(pattern: str, included_by: Path) -> list[Path]:
    path = Path(os.path.expandvars(pattern)).expanduser()
    if not path.is_absolute():
        user_file = not str(included_by).startswith("/etc/ssh/")
        path = (Path.home() / ".ssh" if user_file else Path("/etc/ssh")) / path
    return sorted(Path("/").glob(str(path)[1:]))


def _holds(condition: _Condition, query: _Query) -> bool:
    if not condition.is_match:
        return _matches(condition.words, query.original)
    words = list(condition.words)
    if not words:
        raise _problem(f"{condition.where}: Match without a criterion")
    undecided: str | None = None
    while words:
        word = words.pop(0)
        negated = word.startswith("!")
        criterion = word.lstrip("!").lower()
        if criterion == "all":
            holds = True
        elif criterion == "final":
            holds = query.final
        elif criterion == "canonical":
            holds = False  # canonicalisation is refused below, so there is no such pass
        elif not words:
            raise _problem(f"{condition.where}: Match {criterion} needs a value")
        else:
            value = words.pop(0)
            answer = _criterion(criterion, value, query, condition.where)
            if answer is None:
                undecided = criterion
                continue
            holds = answer
        if holds == negated:
            return False
    if undecided:
        raise _problem(f"{condition.where}: 'Match {undecided}' is not supported by this backend")
    return True


def _criterion(criterion: str, value: str, query: _Query, where: str) -> bool | None:
    if criterion == "host":
        return _matches(value.split(","), query.hostname)
    if criterion == "originalhost":
        return _matches(value.split(","), query.original)
    if criterion == "user":
        user = query.user or query.values.get("user", [getpass.getuser()])[0]
        return _matches(value.split(","), user)
    if criterion == "localuser":
        return _matches(value.split(","), getpass.getuser())
    if criterion == "exec":
        command = expand_tokens(value, query.hostname, query.original, query.user, query.values)
        try:
            # The user's own file, run as ssh runs it: by a shell.
            answer = subprocess.run(  # noqa: S602
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=MATCH_EXEC_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _problem(f"{where}: Match exec took over {MATCH_EXEC_TIMEOUT_S:g} s") from None
        return answer.returncode == 0
    return None


def _matches(patterns: Sequence[str], name: str) -> bool:
    matched = False
    for pattern in patterns:
        glob = pattern.lstrip("!").lower().replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), glob):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def expand_tokens(
    text: str, hostname: str, original: str, user: str | None, values: dict[str, list[str]]
) -> str:
    """ssh_config's %-tokens, a leading ~ and ${VARIABLES}."""
    remote_user = user or values.get("user", [getpass.getuser()])[0]
    tokens = {
        "%": "%", "h": hostname, "n": original, "p": values.get("port", ["22"])[0],
        "r": remote_user, "u": getpass.getuser(), "d": str(Path.home()), "i": str(os.getuid()),
        "L": socket.gethostname().split(".")[0], "l": socket.gethostname(),
        "k": values.get("hostkeyalias", [original])[0],
    }  # fmt: skip
    text = re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)
    text = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], m[0]), text)
    return str(Path(text).expanduser()) if text.startswith("~") else text


def _build(query: _Query) -> HostConfig:
    values = query.values
    hostname = query.hostname
    if values.get("canonicalizehostname", ["no"])[0] != "no" and "canonicaldomains" in values:
        raise _problem(
            f"ssh_config asks to canonicalize {query.original}, which this backend does not do"
        )

    def one(key: str) -> str | None:
        return values[key][0] if values.get(key) else None

    def number(key: str) -> int | None:
        text = one(key)
        if text is not None and not text.isdigit():
            raise _problem(f"ssh_config: {key} {text!r} is no number")
        return None if text is None else int(text)

    def expanded(text: str) -> str:
        return expand_tokens(text, hostname, query.original, query.user, values)

    def paths(key: str) -> tuple[str, ...] | None:
        return tuple(expanded(word) for word in values[key]) if key in values else None

    def proxy(key: str) -> str | None:
        text = one(key)
        return None if text is None or text.lower() == "none" else text

    command = proxy("proxycommand")
    return HostConfig(
        hostname=hostname.replace("%%", "%"),
        port=number("port"),
        user=one("user"),
        identity_files=paths("identityfile") or (),
        identities_only=one("identitiesonly") == "yes",
        identity_agent=expanded(agent) if (agent := one("identityagent")) else None,
        proxy_jump=proxy("proxyjump"),
        proxy_command=command,
        host_key_alias=one("hostkeyalias"),
        user_known_hosts=paths("userknownhostsfile"),
        global_known_hosts=paths("globalknownhostsfile"),
        strict_host_keys=one("stricthostkeychecking"),
        keepalive_s=number("serveraliveinterval"),
    )
