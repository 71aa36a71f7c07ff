"""The user's ssh_config: parsed once, resolved once per host, with the answers of `ssh -G`.

By hand because paramiko's `SSHConfig` ignores Include silently, raises on valid Match lines
(paramiko/paramiko #1992) and needs 67 ms for one lookup among 1,000 Host blocks. What is not
supported is refused with its line, never ignored.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.errors import TransportError
from clusterctl.node_name import why_refused
from clusterctl.transport.ssh_config.host import HostConfig, Query, build, canonical_name, problem
from clusterctl.transport.ssh_config.keywords import ALIASES, GROWING, IGNORED, READERS
from clusterctl.transport.ssh_config.match import Criterion, holds, parse_match
from clusterctl.transport.ssh_config.patterns import matches_any
from clusterctl.transport.ssh_config.values import BadValue, split_words

MAX_INCLUDE_DEPTH = 16  # OpenSSH's own limit
SYSTEM_FOLDER = Path("/etc/ssh")
_LINE = re.compile(r'[ \t\r]*([^ \t\r"=]+)(?:[ \t\r]*=[ \t\r]*|[ \t\r]+|$)(.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Condition:
    where: str
    patterns: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()

    @property
    def literals(self) -> tuple[str, ...] | None:
        """Host names without wildcards, so that the block can be found by a dict."""
        if self.criteria or any(mark in word for word in self.patterns for mark in "*?!"):
            return None
        return self.patterns

    def holds(self, query: Query) -> bool:
        if not self.criteria:
            return matches_any(query.matched_name, self.patterns)
        try:
            return holds(self.criteria, query)
        except BadValue as error:
            raise problem(self.where, error) from None


@dataclass(slots=True)
class _Section:
    conditions: tuple[_Condition, ...]  # all must hold; more than one inside an Include
    settings: list[tuple[str, Any, str]] = field(default_factory=list)


class SshConfig:
    """Parsed ssh_config files, the user's first. `resolve` is cached and safe for threads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._sections: list[_Section] = []
        self._by_name: dict[str, list[int]] = {}
        self._general: list[int] = []
        self._resolved = functools.cache(self._resolve)
        self._ignored_unknown: list[str] = []
        self._has_final = False
        self._negated_final: str | None = None  # the line of a `Match !final`
        self._failure: TransportError | None = None  # a bad line anywhere is one for every host
        try:
            for path in paths:
                self._parse(path, (), 0)
        except TransportError as error:
            self._failure = error
        self._index()

    @classmethod
    def of_user(cls) -> SshConfig:
        """~/.ssh/config, then /etc/ssh/ssh_config."""
        return cls([Path.home() / ".ssh/config", SYSTEM_FOLDER / "ssh_config"])

    def resolve(self, host: str, user: str | None = None, port: int | None = None) -> HostConfig:
        """Settings for `host`; `user` and `port` are those already chosen, as by ssh's -l and -p.

        Raises `TransportError("resolve")` with file and line for what ssh refuses, what cannot be
        decided and what is not supported.
        """
        if self._failure is not None:
            raise TransportError("resolve", str(self._failure), hint=self._failure.hint)
        return self._resolved(host, user, port)

    def _parse(self, path: Path, outer: tuple[_Condition, ...], depth: int) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise problem(path, f"Include is nested more than {MAX_INCLUDE_DEPTH} deep")
        section = self._section(outer)
        for number, raw in enumerate(_read(path, included=depth > 0).split("\n"), 1):
            line = _LINE.fullmatch(raw.rstrip(" \t\r\f"))
            where = f"{path} line {number}"
            if line is None and raw.strip(" \t\r\f"):
                raise problem(where, f"{raw.strip()!r} is not a keyword with a value")
            if line is None or line[1].startswith("#"):
                continue
            keyword = ALIASES.get(line[1].lower(), line[1].lower())
            try:
                if not line[2]:
                    raise BadValue("missing value")
                words = split_words(line[2])
                if keyword in ("host", "match"):
                    condition = self._condition(keyword, words, line[2], where)
                    section = self._section((*outer, condition))
                elif keyword == "include":
                    for pattern in words:
                        for included in _include_paths(pattern, path):
                            self._parse(included, section.conditions, depth + 1)
                    section = self._section(section.conditions)  # keeps the order of lines
                elif keyword in READERS:
                    value = READERS[keyword](words, line[2])
                    if keyword == "ignoreunknown":
                        self._ignored_unknown += str(value).lower().split(",")
                    elif value is not None:
                        section.settings.append((keyword, value, where))
                elif keyword not in IGNORED and not matches_any(keyword, self._ignored_unknown):
                    raise BadValue(f"unknown keyword (IgnoreUnknown {line[1]} accepts it)")
            except BadValue as error:
                raise problem(where, f"{line[1]}: {error}") from None

    def _section(self, conditions: tuple[_Condition, ...]) -> _Section:
        self._sections.append(_Section(conditions))
        return self._sections[-1]

    def _condition(self, keyword: str, words: list[str], rest: str, where: str) -> _Condition:
        if keyword == "host":
            if not all(words):
                raise BadValue("a name is empty")
            return _Condition(where, patterns=tuple(words))
        criteria = parse_match(rest)
        for criterion in criteria:
            if criterion.name == "final" and criterion.negated:
                self._negated_final = where
            self._has_final |= criterion.name == "final" and not criterion.negated
        return _Condition(where, criteria=criteria)

    def _index(self) -> None:
        for number, section in enumerate(self._sections):
            if not section.settings:
                continue
            literals = next((c.literals for c in section.conditions if c.literals), None)
            if literals is None:
                self._general.append(number)
            for name in dict.fromkeys(literals or ()):
                self._by_name.setdefault(name, []).append(number)

    def _resolve(self, host: str, user: str | None, port: int | None) -> HostConfig:
        if why := why_refused("host name", host) or why_refused("user name", user or ""):
            raise TransportError("resolve", why, hint="ssh refuses such names as well")
        query = Query(host, user, port)
        self._apply(query)
        name = canonical_name(query)
        if self._has_final or query.values.get("canonicalizehostname", "no") != "no":
            query.final = True
            query.matched_name = query.values["hostname"] = name
            self._apply(query)
        elif self._negated_final:
            why = "versions of ssh differ about a Match !final without any Match final"
            raise problem(self._negated_final, why)
        return build(query, name)

    def _apply(self, query: Query) -> None:
        values = query.values
        for number in sorted({*self._general, *self._by_name.get(query.matched_name, ())}):
            section = self._sections[number]
            if not all(condition.holds(query) for condition in section.conditions):
                continue
            for keyword, value, where in section.settings:
                if keyword in GROWING:
                    known = values.setdefault(keyword, [])
                    if value not in known:
                        known.append(value)
                elif keyword in ("proxyjump", "proxycommand"):
                    _set_proxy(values, keyword, value, where)
                else:
                    values.setdefault(keyword, value)
                query.where.setdefault(keyword, where)


def _set_proxy(values: dict[str, Any], keyword: str, value: Any, where: str) -> None:
    """ProxyJump and ProxyCommand exclude each other: the first one wins."""
    if "proxycommand" in values or values.get("proxyjump"):
        return
    if "proxyjump" in values and keyword == "proxycommand" and value.lower() != "none":
        why = "versions of ssh differ about a ProxyCommand after `ProxyJump none`"
        raise problem(where, f"{why}; to disable it, add ProxyCommand none")
    values.setdefault(keyword, value)


def _read(path: Path, included: bool) -> str:
    """The text of a file that only we can write; a missing file is empty, as for OpenSSH."""
    try:
        if path.is_fifo():
            raise problem(path, "it is a pipe, and is not waited for")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            foreign = is_open or found.st_uid not in (0, os.getuid())
            if foreign and not path.is_relative_to(SYSTEM_FOLDER):
                raise problem(path, f"other users can write to it: chmod go-w {path}")
            data = file.read()
    except OSError as error:
        if included and not isinstance(error, FileNotFoundError | IsADirectoryError):
            raise problem(path, f"cannot be read: {error.strerror}") from None
        return ""
    if b"\0" in data:
        raise problem(path, "contains a NUL byte")
    return data.decode(errors="surrogateescape")


def _include_paths(pattern: str, included_by: Path) -> list[Path]:
    """Files of an Include pattern, by glob(3): `*` does not match names that begin with a dot."""
    if not pattern or "%" in pattern or "${" in pattern:
        raise BadValue(f"{pattern!r}: only some versions of ssh expand this; write the path")
    by_user = not included_by.is_relative_to(SYSTEM_FOLDER)
    if pattern.startswith("~") and not by_user:
        raise BadValue(f"{pattern!r}: a system file cannot include a user's file")
    folder = Path.home() / ".ssh" if by_user else SYSTEM_FOLDER
    try:
        place = folder / Path(pattern).expanduser()
    except RuntimeError:
        raise BadValue(f"{pattern!r}: no such user") from None
    # Not Path.glob, which finds the hidden files of editors too.
    return [Path(name) for name in sorted(glob.glob(str(place)))]  # noqa: PTH207
