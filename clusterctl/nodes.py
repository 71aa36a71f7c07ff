"""The hostfile and node sets: which machines a command is about, in the hostfile's order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TypeVar

from clusterctl.errors import HostfileError

K = TypeVar("K")
V = TypeVar("V")

MAX_NODES = 100_000  # n[1-1000000000] must not fill the memory
MAX_DIGITS = 18
_PART = re.compile(r"(?:\[[^\]]*\]?|[^,\[])+")  # up to a comma outside brackets
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)(?:\s*/\s*(\d+))?")
_OPERATORS = re.compile(r"[!&^](?![^\[]*\])")
# OpenSSH's rule for names, because ProxyCommand and `Match exec` pass them to a shell as %h and %r
# (CVE-2023-51385).
_REFUSED = {
    "host name": re.compile(r"""^-|['`"$\\;&<>|(){},\s]"""),
    "user name": re.compile(r"""^-|['`";&<>|(){}]|\s-|\\$"""),
}
KEYS = ("host", "port", "user", "slots", "identity")
KNOWN_HOSTS = "known_hosts"  # a label that the transport reads


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. The transport takes from ssh_config what is None here."""

    name: str
    host: str | None = None
    port: int | None = None
    user: str | None = None
    slots: int | None = None
    identity: str | None = None
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def address(self) -> str:
        """The host for ssh to connect to, which ssh_config may change."""
        return self.host or self.name


def read_hostfile(path: Path) -> list[Node]:
    """Nodes of a hostfile in its order.

    Raises `HostfileError` for a missing or empty file, a bad line, a bad range or a name defined
    twice, always with the line number; and for known_hosts= in a file that another user could have
    written: it decides which machines are trusted.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "write one node per line, see nodes.txt.example, or name another file"
        raise HostfileError(f"hostfile {path} does not exist", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise HostfileError(f"hostfile {path} cannot be read: {why}") from None
    nodes = parse_hostfile(text, str(path))
    trusted = {value for node in nodes for key, value in node.labels if key == KNOWN_HOSTS}
    for known_hosts in sorted(trusted):
        _check_owners(path, Path(known_hosts).expanduser())
    return nodes


def _check_owners(hostfile: Path, known_hosts: Path) -> None:
    """Raise `HostfileError` when another user could have written which host keys are good."""
    from clusterctl.payload.files.ownership import why_untrusted

    for path in (hostfile, known_hosts):
        try:
            why = why_untrusted(str(path))
        except OSError:
            continue  # a known_hosts file that does not exist yet trusts no host
        if why:
            action = "leave it out, or close the file to others"
            text = f"hostfile {hostfile}: known_hosts={known_hosts} is not taken: {why}"
            raise HostfileError(text, hint=f"it replaces the user's own known_hosts; {action}")


def parse_hostfile(text: str, source: str = "hostfile") -> list[Node]:
    """As `read_hostfile`, for its text; `source` names it in messages."""
    nodes: list[Node] = []
    first_line: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{source} line {number}"
        try:
            words = shlex.split(raw, comments=True)
        except ValueError as error:
            raise HostfileError(f"{where}: {error}") from None
        if not words:
            continue
        fields = _parse_fields(words[1:], where)
        names = expand(words[0], where)
        if len(names) > 1 and "host" in fields:
            many = f"host={fields['host']} cannot stand for {len(names)} nodes"
            raise HostfileError(f"{where}: {many}", hint="give each of them its own line")
        for name in names:
            node = _make_node(name, fields, where)
            if node.name in first_line:
                before = f"{node.name} is already defined on line {first_line[node.name]}"
                hint = "a node that is listed twice would get every rank twice"
                raise HostfileError(f"{where}: {before}", hint=hint)
            first_line[node.name] = number
            nodes.append(node)
        if len(nodes) > MAX_NODES:
            raise HostfileError(f"{where}: this line makes more than {MAX_NODES:,} nodes")
    if not nodes:
        hint = "write one node per line, see nodes.txt.example"
        raise HostfileError(f"{source} names no node", hint=hint)
    return nodes


def _parse_fields(words: Iterable[str], where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            hint = f"keys: {', '.join(KEYS)}, or your own; comments start with #"
            raise HostfileError(f"{where}: {word!r} is not key=value", hint=hint)
        if key in fields:
            raise HostfileError(f"{where}: {key}= is given twice")
        fields[key] = value
    return fields


def _make_node(name: str, fields: dict[str, str], where: str) -> Node:
    user, at, rest = name.rpartition("@")
    if at and (not user or not rest):
        raise HostfileError(f"{where}: {name!r} is not a node name")
    if at and "user" in fields and fields["user"] != user:
        raise HostfileError(f"{where}: two users, {user} and {fields['user']}")
    given = [("host name", rest), ("host name", fields.get("host", ""))]
    given.append(("user name", fields.get("user") or user))
    for problem in filter(None, (why_refused(*one) for one in given)):
        raise HostfileError(f"{where}: {problem}", hint="ssh refuses such names as well")
    return Node(
        name=rest,
        host=fields.get("host"),
        port=_number(fields, "port", 1, 65535, where),
        user=fields.get("user") or user or None,
        slots=_number(fields, "slots", 1, 1024, where),
        identity=fields.get("identity"),
        labels=tuple((key, value) for key, value in fields.items() if key not in KEYS),
    )


def why_refused(what: str, name: str) -> str | None:
    """The sentence about a "host name" or "user name" that ssh refuses too; None for a good one."""
    found = _REFUSED[what].search(name)
    odd = found[0] if found else next((char for char in name if not char.isprintable()), None)
    if odd == "-":
        return f"{what} {name!r} begins with '-'"
    return odd and f"{what} {name!r} contains {odd!r}, which a shell could interpret"


def hostfile_line(node: Node) -> str:
    """The line that `read_hostfile` would read as this node."""
    fields = [(key, getattr(node, key)) for key in KEYS]
    words = [f"{key}={value}" for key, value in (*fields, *node.labels) if value is not None]
    return " ".join(shlex.quote(word) for word in (node.name, *words))


def _number(fields: dict[str, str], key: str, low: int, high: int, where: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
        raise HostfileError(f"{where}: {key}={value} is not a number from {low} to {high}")
    return int(value)


def expand(text: str, where: str = "node set") -> list[str]:
    """`n[1-3],m` as names in the order written. A plain name costs no import."""
    if not any(mark in text for mark in "[],") and not text.startswith("@"):
        return [text]
    from ClusterShell.NodeSet import NodeSet, NodeSetException  # 60 ms, only where a set is written
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    # Before NodeSet sees it, which would build the whole set in memory.
    parts = [part for part in _PART.findall(text) if part.strip()]
    if sum(map(_count, parts)) > MAX_NODES:
        shown = text if len(text) < 80 else text[:77] + "..."
        raise HostfileError(f"{where}: {shown!r} names more than {MAX_NODES:,} nodes")
    names: dict[str, None] = {}
    try:
        # One part at a time: NodeSet sorts, we keep the order in which the user wrote the parts.
        for part in parts:
            user, at, rest = part.strip().rpartition("@")
            user = "" if user.startswith("@") else user  # root@n[1-3], but @group and @source:group
            prefix = user + at if user else ""
            names.update(dict.fromkeys(prefix + name for name in NodeSet(rest if user else part)))
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise HostfileError(f"{where}: {text!r} is not a node set: {error}") from None
    if not names:
        raise HostfileError(f"{where}: {text!r} names no node")
    return list(names)


def _count(part: str) -> int:
    """Number of names in a part, by its text: the product of its brackets, summed over `a!b`."""
    total = 0
    for operand in _OPERATORS.split(part):
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


def counted(number: int, noun: str) -> str:
    """`1 node`, `24 nodes`, `3,264 processes`."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def fold(names: Iterable[str]) -> str:
    """Names as one short node set: n1, n2, n3 become n[1-3]."""
    names = list(names)
    if len(names) <= 1:
        return "".join(names)
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return str(NodeSet.fromlist(names))
    except NodeSetException:
        return ",".join(names)  # a name that is no node-set syntax is shown as it is


def is_loopback(node: Node) -> bool:
    """Whether the hostfile's address is this machine itself, as far as the text tells."""
    address = node.address
    return address == "localhost" or address.startswith("127.") or address == "::1"


def select(
    nodes: Sequence[Node], only: str | None = None, without: str | None = None
) -> list[Node]:
    """Nodes kept by `-w only` and `-x without`. Raises `HostfileError`, also when none is left."""
    known = {node.name for node in nodes}
    kept = list(nodes)
    for flag, text in (("-w", only), ("-x", without)):
        if not text:
            continue
        names = set(expand(text, flag))
        if strangers := names - known:
            hint = "clusterctl nodes lists what is"
            text = f"{flag}: {fold(sorted(strangers))} is not in the hostfile"
            raise HostfileError(text, hint=hint)
        kept = [node for node in kept if (node.name in names) == (flag == "-w")]
    if not kept:
        raise HostfileError("-w and -x leave no node")
    return kept
