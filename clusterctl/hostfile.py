"""The hostfile: its lines as nodes, in its order; what is no line of one is refused where it is.
Files of a cluster lie beside it and are changed under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterctl.errors import ClusterctlError, HostfileError, UsageError
from clusterctl.hostfile_hints import (
    KEYS,
    KNOWN_HOSTS,
    why_foreign_key,
    why_foreign_line,
    why_other_host,
)
from clusterctl.node_name import why_bad_name, why_refused
from clusterctl.node_sets import MAX_DIGITS, MAX_NODES, expand
from clusterctl.nodes import Node
from trainer.runlog import locks
from trainer.runlog.run_files import WAIT_S, read_chosen

MOST_LINES = 1_000_000  # with comments
LOCK_S = 10.0  # that a change of a file waits for another one
LONGEST_LINE = 100_000  # characters; a set of 10,000 single numbers has 60,000


def read_hostfile(path: Path, wait_s: float = WAIT_S) -> list[Node]:
    """Nodes of a hostfile in its order.

    Raises `HostfileError` for a missing or empty file, a bad line, a bad range or a name defined
    twice, always with the line number; and for known_hosts= in a file that another user could have
    written: it decides which machines are trusted. A pipe is read for `wait_s`.
    """
    try:
        text = read_chosen(path, wait_s=wait_s).decode("utf-8-sig")
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
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        raise HostfileError(f"{source} has more than {MOST_LINES:,} lines")
    for number, raw in enumerate(lines, 1):
        where = f"{source} line {number}"
        if len(raw) > LONGEST_LINE:
            hint = "write ranges as n[1-3,7], or more lines"
            raise HostfileError(f"{where} has more than {LONGEST_LINE:,} characters", hint=hint)
        words = _words(raw, where)
        if not words:
            continue
        if foreign := why_foreign_line(words):
            raise HostfileError(f"{where}: {foreign.text}", hint=foreign.hint)
        names = expand(words[0], where)
        fields = _parse_fields(words[0], words[1:], where)
        if len(names) > 1 and "host" in fields:
            many = f"host={fields['host']} cannot stand for {len(names)} nodes"
            raise HostfileError(f"{where}: {many}", hint="give each of them its own line")
        for name in names:
            node = _make_node(name, fields, where)
            if node.name in first_line:
                before = f"{node.name} is already defined on line {first_line[node.name]}"
                hint = "for more ranks there write slots=N on one line"
                raise HostfileError(f"{where}: {before}", hint=hint)
            first_line[node.name] = number
            nodes.append(node)
        if len(nodes) > MAX_NODES:
            raise HostfileError(f"{where}: up to here there are more than {MAX_NODES:,} nodes")
    if not nodes:
        hint = "write one node per line, see nodes.txt.example"
        raise HostfileError(f"{source} names no node", hint=hint)
    return nodes


def _words(raw: str, where: str) -> list[str]:
    """The words of a line, as a shell has them, without a comment."""
    if "\0" in raw:
        raise HostfileError(f"{where} holds a NUL character: it is not text")
    if not any(mark in raw for mark in "'\"\\#\r"):  # as shlex, in a tenth of its time
        return [word for word in raw.replace("\t", " ").split(" ") if word]
    try:
        return shlex.split(raw, comments=True)
    except ValueError as error:
        raise HostfileError(f"{where}: {error}") from None


def _parse_fields(name: str, words: Sequence[str], where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    keys = {word.partition("=")[0] for word in words}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            hint = f"keys: {', '.join(KEYS)}, or your own; comments start with #"
            raise HostfileError(f"{where}: {word!r} is not key=value", hint=hint)
        if foreign := why_foreign_key(name, key, value, keys):
            raise HostfileError(f"{where}: {foreign.text}", hint=foreign.hint)
        if key in fields:
            keep = " or ".join(f"{key}={one}" for one in dict.fromkeys((fields[key], value)))
            raise HostfileError(f"{where}: {key}= is given twice", hint=f"keep one: {keep}")
        if key in ("identity", KNOWN_HOSTS):
            _check_home(key, value, where)
        fields[key] = value
    return fields


def _check_home(key: str, value: str, where: str) -> None:
    try:
        Path(value).expanduser()
    except RuntimeError:
        who = value.partition("/")[0]
        text = f"{where}: {key}={value}: there is no home folder {who} on this machine"
        raise HostfileError(text, hint="write the whole path") from None


def _make_node(name: str, fields: dict[str, str], where: str) -> Node:
    user, at, rest = name.rpartition("@")
    if at and (not user or not rest):
        raise HostfileError(f"{where}: {name!r} is not a node name")
    if at and "user" in fields and fields["user"] != user:
        raise HostfileError(f"{where}: two users, {user} and {fields['user']}")
    host, login = fields.get("host", ""), fields.get("user") or user
    if problem := why_refused("host name", host) or why_refused("user name", login):
        raise HostfileError(f"{where}: {problem}", hint="ssh refuses such names as well")
    if foreign := why_other_host(rest, host):
        raise HostfileError(f"{where}: {foreign.text}", hint=foreign.hint)
    if problem := why_bad_name(rest):
        hint = (
            f"write a name of these, and host={rest}"
            if why_refused("host name", rest) is None
            else "ssh refuses such names as well"
        )
        raise HostfileError(f"{where}: {problem}", hint=hint)
    return Node(
        name=rest,
        host=fields.get("host"),
        port=_number(fields, "port", 1, 65535, where),
        user=fields.get("user") or user or None,
        slots=_number(fields, "slots", 1, 1024, where),
        identity=fields.get("identity"),
        labels=tuple((key, value) for key, value in fields.items() if key not in KEYS),
    )


def hostfile_line(node: Node) -> str:
    """The line that `read_hostfile` would read as this node."""
    fields = [(key, getattr(node, key)) for key in KEYS]
    words = [f"{key}={value}" for key, value in (*fields, *node.labels) if value is not None]
    return " ".join(shlex.quote(word) for word in (node.name, *words))


_NO_NUMBER = {
    ("slots", True): "leave the line out: a node of a hostfile has at least one rank",
    ("slots", False): "slots is the number of processes to start there; launch has one for all",
    ("port", True): "leave port= out for that of ~/.ssh/config, or 22",
    ("port", False): "write the number of the port, or leave port= out for 22",
}


def _number(fields: dict[str, str], key: str, low: int, high: int, where: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    is_number = value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS
    if not (is_number and low <= int(value) <= high):
        text = f"{where}: {key}={value} is not a number from {low} to {high}"
        raise HostfileError(text, hint=_NO_NUMBER[key, value == "0"])
    return int(value)


@contextlib.contextmanager
def locked(path: Path, error: type[ClusterctlError] = UsageError) -> Iterator[bool]:
    """Hold a hidden file beside `path`, a file beside a hostfile, while it is read and changed.

    Raises `error`.

    The value is False on a file system without locks: there two changes may meet.
    """
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as held:
        try:
            held.callback(os.close, locks.take(lock, LOCK_S, 0o666))
            is_held = True
        except locks.NoLocks:
            is_held = False
        except locks.Held:
            raise error(f"{path} was not changed: another command holds {lock.name}") from None
        except OSError as why:
            text = f"{lock} is a link" if why.errno == errno.ELOOP else why.strerror
            raise error(f"{path} was not changed: {text}") from None
        held.callback(lock.unlink, missing_ok=True)
        yield is_held
