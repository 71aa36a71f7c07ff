"""Node sets that a user types: `n[1-3,7]`, `n[1-9]!n5`, and groups of ClusterShell.

Group sources are shell commands (groups.conf). They are asked for nothing but the groups that the
user names, by plain names, and what they print is read as names again, with no other syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING

from clusterctl.errors import HostfileError
from clusterctl.node_name import is_node_name, why_bad_name

if TYPE_CHECKING:
    from ClusterShell.NodeSet import NodeSet

MAX_NODES = 100_000  # n[1-1000000000] must not fill the memory
MAX_DIGITS = 18
LONGEST = 100_000  # characters of a set; 10,000 single numbers have 60,000
MOST_NESTED = 8  # groups within groups
_BALANCED = re.compile(r"(?:[^\[\]]|\[[^\[\]]*\])*")
_PART = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")  # up to a comma outside brackets
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)(?:\s*/\s*(\d+))?")
_OTHER_RANGE = re.compile(
    r"(?<=[\[,])\s*(\d+)(?::|\.\.)(\d+)(?:(?::|\.\.)(\d+))?(?=\s*[,\]])", re.ASCII
)
_TOKEN = re.compile(r"[!&^]|(?:[^!&^\[]|\[[^\]]*\])+")  # an operator outside brackets, an operand
_APPLY = {"!": "difference_update", "&": "intersection_update", "^": "symmetric_difference_update"}
# A group source gets the name of a group as a word of a shell command (groups.conf, `map:`).
_GROUP = re.compile(r"@(?:(\w[\w.-]*):)?(\*|\w(?:[\w.-]|\[[\d,/-]*\])*)", re.ASCII)


def expand(text: str, where: str = "node set") -> list[str]:
    """`n[1-3],m` as names in the order written. A plain name costs no import.

    Also `n[1-9]!n5`, and @group or @source:group of ClusterShell's group sources. Raises
    `HostfileError`.
    """
    if not any(mark in text for mark in "[],") and not text.startswith("@"):
        return [text]
    if len(text) > LONGEST:
        hint = "write ranges as n[1-3,7]"
        raise HostfileError(
            f"{where}: {_short(text)} has more than {LONGEST:,} characters", hint=hint
        )
    names: dict[str, None] = {}
    for user, part in _parts(text, where):
        # One part at a time: NodeSet sorts, we keep the order in which the user wrote the parts.
        names.update(dict.fromkeys(user + name for name in _set_of(part, text, where)))
        if len(names) > MAX_NODES:
            raise _too_many(text, where)
    if not names:
        raise HostfileError(f"{where}: {_short(text)} names no node")
    return list(names)


def _parts(text: str, where: str) -> list[tuple[str, str]]:
    """(`user@` or "", node set) of each part, none of which makes too many names."""
    if not _BALANCED.fullmatch(text):
        raise HostfileError(f"{where}: {_short(text)} is not a node set: [ and ] do not match")
    parts = [part.strip() for part in _PART.findall(text) if part.strip()]
    if sum(map(_count, parts)) > MAX_NODES:  # before NodeSet sees it and builds it in memory
        raise _too_many(text, where)
    found = []
    for part in parts:
        user, at, rest = part.rpartition("@")  # root@n[1-3], but @group and n[1-9]!@group
        is_user = (
            user != "" and not user.startswith("@") and not any(sign in user for sign in _APPLY)
        )
        if is_user and "[" in user:
            raise HostfileError(f"{where}: {_short(part)} is not a node set: a user has no numbers")
        if is_user and not rest.strip():
            raise HostfileError(f"{where}: {_short(part)} names a user and no node")
        found.append((user + at, rest) if is_user else ("", part))
    return found


def _set_of(
    part: str, text: str, where: str, source: str | None = None, depth: int = 0
) -> Iterable[str]:
    """The names of one part: operands, from left to right."""
    if is_node_name(part):
        return [part]
    from ClusterShell.NodeSet import (  # 60 ms, only where a set is written
        RESOLVER_NOGROUP,
        NodeSet,
        NodeSetException,
    )

    def operand(written: str) -> NodeSet:
        if written.startswith("@"):
            members = _members(written, text, where, source, depth)
            return NodeSet.fromlist(members, resolver=RESOLVER_NOGROUP)
        if (fixed := _with_dashes(written)) != written:
            dash = f"{_short(written)} is not a node set: a range is written with a dash"
            raise HostfileError(f"{where}: {dash}", hint=f"write {_short(fixed)}")
        bare = _BRACKETS.sub("0", written)
        if why := why_bad_name(bare):
            raise HostfileError(f"{where}: {why}", hint=_set_hint(written))
        return NodeSet(written, resolver=RESOLVER_NOGROUP)

    first, *rest = (token.strip() for token in _TOKEN.findall(part))
    signs, others = rest[::2], rest[1::2]
    if len(signs) != len(others) or set(signs) - _APPLY.keys() or _APPLY.keys() & {first, *others}:
        raise HostfileError(f"{where}: {_short(text)} is not a node set: an operand is missing")
    try:
        found: Iterable[str] = operand(first)
        for sign, written in zip(signs, others, strict=True):
            getattr(found, _APPLY[sign])(operand(written))
    except NodeSetException as error:
        hint = "write a set as n[1-3,7]: numbers, the lower one first"
        why = f"{where}: {_short(text)} is not a node set: {error}"
        raise HostfileError(why, hint=hint) from None
    return found


def _with_dashes(written: str) -> str:
    """A set with the ranges of other tools as this one writes them: [1:30] and [1:30:2] of ansible,
    [1..30] and [1..30..2] of shells, as [1-30] and [1-30/2].
    """

    return _BRACKETS.sub(lambda found: _OTHER_RANGE.sub(_dashes, found[0]), written)


def _dashes(found: re.Match[str]) -> str:
    return f"{found[1]}-{found[2]}" + (f"/{found[3]}" if found[3] else "")


def _members(group: str, text: str, where: str, source: str | None, depth: int) -> Iterator[str]:
    """Names of a group that a user wrote, also of the groups in it."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, std_group_resolver
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    match = _GROUP.fullmatch(group)
    if match is None or depth > MOST_NESTED:
        why = (
            "is not the name of a group" if match is None else "is in itself, or nested too deeply"
        )
        raise HostfileError(f"{where}: {_short(text)} is not a node set: {_short(group)} {why}")
    source = match[1] or source
    names = ["*"] if match[2] == "*" else NodeSet(match[2], resolver=RESOLVER_NOGROUP)
    try:
        resolver = std_group_resolver()
        for name in names:
            is_all = name == "*"
            found = resolver.all_nodes(source) if is_all else resolver.group_nodes(name, source)
            # What a group source prints is data: read as a set is, with no other syntax.
            for user, part in _parts(",".join(found), where):
                yield from (user + one for one in _set_of(part, text, where, source, depth + 1))
    except (GroupResolverError, GroupSourceError) as error:
        raise HostfileError(f"{where}: {_short(text)} is not a node set: {error}") from None


def _set_hint(written: str) -> str | None:
    """What to write in place of a set as shells and other tools have it."""
    if any(mark in written for mark in "{}*?") or ".." in written:
        return "write a set as n[1-3,7]"
    if port := re.fullmatch(r"[^:]+:(\d+)", written):
        return f"give each node a line of its own, with slots={port[1]} or port={port[1]}"
    return None


def _too_many(text: str, where: str) -> HostfileError:
    return HostfileError(f"{where}: {_short(text)} names more than {MAX_NODES:,} nodes")


def _short(text: str) -> str:
    return repr(text if len(text) < 80 else text[:77] + "...")


def _count(part: str) -> int:
    """Number of names in a part, by its text: the product of its brackets, summed over `a!b`."""
    total = 0
    for operand in _TOKEN.findall(part):
        if operand in _APPLY:
            continue
        brackets = [group.split(",") for group in _BRACKETS.findall(operand)]
        total += prod(sum(map(_width, pieces)) for pieces in brackets)
    return total


def _width(piece: str) -> int:
    """Numbers in `7`, `1-20` or `1-20/5`; 1 for text that NodeSet will refuse."""
    found = _RANGE.search(piece)
    if found is None:
        return 1
    low, high, step = found[1], found[2], found[3] or "1"
    if max(map(len, (low, high))) > MAX_DIGITS:
        return MAX_NODES + 1  # Python itself refuses to read numbers of thousands of digits
    return max(1, (int(high) - int(low)) // max(1, int(step[:MAX_DIGITS])) + 1)
