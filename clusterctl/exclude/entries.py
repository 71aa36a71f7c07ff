"""exclude.toml: nodes of a cluster that no run may use, with reason and time. Reads it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from checks import units
from clusterctl.defaults import parse_toml
from clusterctl.errors import UsageError
from clusterctl.node_name import why_bad_name

FILE = "exclude.toml"
MAX_BYTES = 1 << 20
MAX_REASON = 500  # characters
KEYS = ("node", "reason", "since", "until", "by")
_HEADER = re.compile(r"\s*\[\[\s*exclude\s*\]\]\s*(#.*)?")
_EXAMPLE = 'write [[exclude]], and below it node = "node-007" and reason = "why"'


class ExcludeError(UsageError):
    """exclude.toml cannot be read or changed; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that is left out. Times are unix seconds; `until_s` None: until it is removed."""

    node: str
    reason: str
    since_s: float | None = None
    until_s: float | None = None
    by: str = ""

    def is_over(self, now_s: float) -> bool:
        return self.until_s is not None and self.until_s <= now_s

    @property
    def sentence(self) -> str:
        """`n7 since 2026-03-01T08:00:00Z by ann@head, reason: Xid 79; until it is removed`."""
        since = f" since {stamp(self.since_s)}" if self.since_s is not None else ""
        by = f" by {self.by}" if self.by else ""
        return f"{self.node}{since}{by}, reason: {self.reason}; until {self.end}"

    @property
    def end(self) -> str:
        """The time of its end, or "it is removed"."""
        return "it is removed" if self.until_s is None else stamp(self.until_s)

    def to_json(self, *, is_over: bool) -> dict[str, Any]:
        return {
            "node": self.node,
            "reason": self.reason,
            "since": None if self.since_s is None else stamp(self.since_s),
            "until": None if self.until_s is None else stamp(self.until_s),
            "by": self.by,
            "is_over": is_over,
        }


def stamp(unix_s: float) -> str:
    """A time in UTC, as exclude.toml has it: 2026-03-01T08:00:00Z."""
    return datetime.fromtimestamp(int(unix_s), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def path_beside(hostfile: Path) -> Path:
    """Where the exclusions of a cluster lie: beside its hostfile."""
    return hostfile.with_name(FILE)


def read(path: Path) -> list[Exclusion]:
    """The entries in the file's order; none without a file. Raises `ExcludeError`."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The file's text; "" without one. Raises `ExcludeError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ExcludeError(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise ExcludeError(f"{path} cannot be read: it is a folder or a device")
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > MAX_BYTES:
            raise ExcludeError(f"{path} cannot be read: it is longer than {units.size(MAX_BYTES)}")
        try:
            return file.read(MAX_BYTES).decode("utf-8-sig")
        except OSError as error:
            raise ExcludeError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ExcludeError(f"{path} cannot be read: it is not text in UTF-8") from None


def parse(text: str, source: str = FILE) -> list[Exclusion]:
    """As `read`, for its text; `source` names it in messages."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise ExcludeError(f"{source} cannot be read: {error}", hint=_EXAMPLE) from None
    if strange := sorted(set(data) - {"exclude"}):
        line = line_of(text.splitlines(), strange[0])
        raise ExcludeError(f"{source} line {line}: {strange[0]!r} is not known", hint=_EXAMPLE)
    tables = data.get("exclude", [])
    starts = headers(text.splitlines())
    if not isinstance(tables, list) or len(tables) != len(starts):
        raise ExcludeError(f"{source}: each node needs its own [[exclude]]", hint=_EXAMPLE)
    entries: list[Exclusion] = []
    first_line: dict[str, int] = {}
    for table, start in zip(tables, starts, strict=True):
        entry = _entry(table, f"{source} line {start + 1}")
        if entry.node in first_line:
            before = f"{entry.node} is already excluded on line {first_line[entry.node]}"
            raise ExcludeError(f"{source} line {start + 1}: {before}")
        first_line[entry.node] = start + 1
        entries.append(entry)
    return entries


def headers(lines: Sequence[str]) -> list[int]:
    """Indices of the lines [[exclude]]."""
    return [index for index, line in enumerate(lines) if _HEADER.fullmatch(line)]


def line_of(lines: Sequence[str], key: str) -> int:
    """Number of the first line that begins with a key or its table; 1 where none does."""
    pattern = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 1)


def _entry(table: dict[str, Any], where: str) -> Exclusion:
    if strange := sorted(set(table) - set(KEYS)):
        keys = f"keys: {', '.join(KEYS)}"
        raise ExcludeError(f"{where}: the entry has a key {strange[0]!r}", hint=keys)
    words = {key: table.get(key, "") for key in ("node", "reason", "by")}
    for key, value in words.items():
        if not isinstance(value, str) or (key != "by" and not value.strip()):
            need = "is missing" if value == "" else f"is {value!r}, not a text"
            raise ExcludeError(f"{where}: {key} of the entry {need}", hint=_EXAMPLE)
        if problem := why_bad_text(value):
            raise ExcludeError(f"{where}: {key} of the entry {problem}")
    if wrong := why_bad_node(words["node"]):
        raise ExcludeError(f"{where}: {wrong}")
    since_s, until_s = (_time(table, key, where) for key in ("since", "until"))
    return Exclusion(words["node"], words["reason"].strip(), since_s, until_s, words["by"])


def why_bad_text(text: str) -> str:
    """What is wrong with a reason or a name; "" for nothing."""
    if len(text) > MAX_REASON:
        return f"is longer than {MAX_REASON} characters"
    odd = next((char for char in text if not char.isprintable()), None)
    return "" if odd is None else f"holds {odd!r}; it is one printable line"


def why_bad_node(name: str) -> str | None:
    """The sentence about what is not the name of one node; None for a good one."""
    if any(mark in name for mark in "[],@*"):
        return f"node = {name!r} is not one node; each node has its own entry"
    return why_bad_name(name)


def _time(table: dict[str, Any], key: str, where: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        hint = f"{key} = 2026-03-01T08:00:00Z"
        raise ExcludeError(f"{where}: {key} = {value} lacks a time or its zone", hint=hint)
    return value.timestamp()
