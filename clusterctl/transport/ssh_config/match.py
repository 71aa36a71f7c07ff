"""`Match` lines of ssh_config: their criteria, and whether they hold."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from checks import units
from clusterctl.transport.ssh_config.host import Query, local_user
from clusterctl.transport.ssh_config.patterns import host_matches, matches_any
from clusterctl.transport.ssh_config.values import BadValue, expand

EXEC_TIMEOUT_S = 10.0
UNSUPPORTED = ("command", "localnetwork", "sessiontype", "tagged", "version")
# The syntax that all versions of ssh read alike: 9.9 changed how quotes, backslashes and
# `host = name` are read.
_CRITERION = re.compile(
    r"""[ \t]*(?P<negated>!?)(?P<name>[a-z]+)
        (?:(?:=|[ \t]+)(?:"(?P<quoted>(?:[^"\\]|\\(?!["'\\]))*)"
                         |(?P<plain>[^ \t"'\\=\#][^ \t"'\\=]*)))?
        (?=[ \t]|$)""",
    re.VERBOSE | re.IGNORECASE,
)
ALONE = ("all", "canonical", "final")  # criteria without a value
_ALONE = re.compile(rf"[ \t]*(?P<negated>!?)(?P<name>{'|'.join(ALONE)})(?=[ \t]|$)", re.IGNORECASE)
_DIFFERENT = (
    "versions of ssh read this differently; write each criterion as name value or name "
    '"value", without backslashes before quotes'
)


@dataclass(frozen=True, slots=True)
class Criterion:
    name: str
    value: str
    negated: bool


def parse_match(text: str) -> tuple[Criterion, ...]:
    """The criteria of a Match line. Raises `BadValue`."""
    criteria: list[Criterion] = []
    position = 0
    while text[position:].strip(" \t") and not text[position:].lstrip(" \t").startswith("#"):
        found = _ALONE.match(text, position) or _CRITERION.match(text, position)
        if found is None:
            raise BadValue(f"Match {text.strip()}: {_DIFFERENT}")
        name, groups = found["name"].lower(), found.groupdict()
        value = groups.get("quoted") or groups.get("plain") or ""
        needs_value = not value and name not in ALONE
        if needs_value and text[found.end() :].strip(" \t"):
            raise BadValue(f"Match {text.strip()}: {_DIFFERENT}")
        if name not in _DECIDE and name not in UNSUPPORTED:
            raise BadValue(f"Match {name}: unknown criterion")
        if needs_value:
            raise BadValue(f"Match {name} needs a value")
        criteria.append(Criterion(name, value, bool(found["negated"])))
        position = found.end()
    if not criteria:
        raise BadValue("Match needs a criterion")
    all_at = [place for place, criterion in enumerate(criteria) if criterion.name == "all"]
    if all_at not in ([], [len(criteria) - 1]) or (all_at and len(criteria) > 2):
        raise BadValue("Match all cannot be combined with other criteria")
    return tuple(criteria)


def holds(criteria: tuple[Criterion, ...], query: Query) -> bool:
    """Whether all criteria hold. Raises `BadValue` when an unsupported one would decide."""
    undecided = None
    for criterion in criteria:
        decide = _DECIDE.get(criterion.name)
        if decide is None:
            undecided = criterion.name
        elif decide(criterion.value, query) == criterion.negated:
            return False
    if undecided is not None:
        raise BadValue(f"'Match {undecided}' is not supported by this backend")
    return True


def _succeeds(command: str, query: Query) -> bool:
    """Run by the user's shell, as ssh does: it is the user's own file."""
    try:
        answer = subprocess.run(  # noqa: S602
            expand(command, query.tokens()),
            shell=True,
            executable=os.environ.get("SHELL") or "/bin/sh",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=EXEC_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadValue(f"Match exec took over {units.duration(EXEC_TIMEOUT_S)}") from None
    except OSError as error:
        raise BadValue(f"Match exec cannot run: {error.filename}: {error.strerror}") from None
    return answer.returncode == 0


_DECIDE: dict[str, Callable[[str, Query], bool]] = {
    "all": lambda value, query: True,
    "canonical": lambda value, query: query.final,
    "final": lambda value, query: query.final,
    "host": lambda value, query: host_matches(query.hostname, value),
    "originalhost": lambda value, query: host_matches(query.original, value),
    "user": lambda value, query: matches_any(query.remote_user, value.split(",")),
    "localuser": lambda value, query: matches_any(local_user(), value.split(",")),
    "exec": _succeeds,
}
