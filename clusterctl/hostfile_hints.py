"""Lines that are written for another tool: what they say there, and how a hostfile says it. Pure.

A word that would be taken for a name or a label, and means something else where it comes from,
would make a node that does not exist, or connect to another port than the one that is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.node_name import is_ipv6, is_node_name

KEYS = ("host", "port", "user", "slots", "identity")
KNOWN_HOSTS = "known_hosts"  # a label that the transport reads
LINE = "name [key=value …], one node or node set a line"
SSH_PORT = 22
MOST_RANKS = 1023  # of a node: a larger number behind a colon is a port
# Words of ansible, Open MPI, MPICH, Ray, ssh_config and others, by what a hostfile calls them.
OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("hostname", "ansible_host", "ansible_ssh_host", "ssh_host"), "host"),
    **dict.fromkeys(("ansible_port", "ansible_ssh_port", "ssh_port", "sshport"), "port"),
    **dict.fromkeys(("username", "ansible_user", "ansible_ssh_user", "ssh_user"), "user"),
    **dict.fromkeys(("max_slots", "max-slots", "np", "nproc", "nproc_per_node", "ppn"), "slots"),
    **dict.fromkeys(("identityfile", "identity_file", "ssh_key", "keyfile"), "identity"),
    **dict.fromkeys(("ansible_ssh_private_key_file", "ansible_private_key_file"), "identity"),
    **dict.fromkeys(("userknownhostsfile", "known-hosts", "knownhosts"), KNOWN_HOSTS),
}
_URL = re.compile(r"([A-Za-z][\w+.-]*)://(.*)", re.ASCII | re.DOTALL)
_SET = r"[^:@\[\]]*(?:\[[\d,/-]*\][^:@\[\]]*)*"  # a node set without a colon
_PBS = re.compile(
    r"([A-Za-z0-9][\w.-]{0,252}):(?:ppn|np|slots|ncpus)=(\d{1,6})(?::\S{0,200})?"
)  # Torque
_AT_PORT = re.compile(rf"(?:([^@\[\]]+)@)?(\[[^\]]*\]|{_SET}):(\d+)?(:.*)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,6}", re.ASCII)
_USER = re.compile(r"[A-Za-z_][\w-]{0,31}", re.ASCII)
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}", re.ASCII)
_KEY_TYPE = re.compile(r"(ssh|ecdsa|sk-\w+|rsa)-[\w@.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Foreign:
    """What is wrong with a word, and what to write."""

    text: str
    hint: str


def why_foreign_line(words: Sequence[str]) -> Foreign | None:
    """What a line is that was written for another tool; None for a line of a hostfile."""
    first = words[0]
    if re.fullmatch(r"\[[^\[\]]*\]", first) and not is_ipv6(first[1:-1]):
        return Foreign(f"{first!r} is a section of an inventory", f"leave it out; write {LINE}")
    if first in ("---", "...", "-") or re.fullmatch(r"[^:@]+:", first) or first[:1] in ("{", "}"):
        return Foreign(f"{first!r} is YAML or JSON", f"write {LINE}")
    return _other_name(first) or (_second_word(words) if len(words) > 1 else None)


def _other_name(word: str) -> Foreign | None:
    """A first word that holds more than a name: a URL, a port, a number of processes."""
    if url := _URL.fullmatch(word):
        user, _, rest = url[2].partition("/")[0].rpartition("@")
        login = user.partition(":")[0]
        host, _, port = rest.partition(":") if not rest.startswith("[") else (rest, "", "")
        return Foreign(f"{word!r} is a URL", f"write {_line(host, port, login)}")
    if told := _PBS.fullmatch(word):
        return Foreign(f"{word!r} is not a node name", f"write '{told[1]} slots={told[2]}'")
    found = _AT_PORT.fullmatch(word)
    if found is None or is_ipv6(word.rpartition("@")[2].partition("%")[0]):
        user, _, bare = word.rpartition("@")
        if is_ipv6(bare.strip("[]").partition("%")[0]) and not is_node_name(bare):
            return Foreign(f"{word!r} is an address", f"write {_line(bare, '', user)}")
        return None
    user, host, number = found[1] or "", found[2], found[3] or ""
    if not number or not host:
        return Foreign(f"{word!r} is not a node name", f"write {_line(host or 'name', '', user)}")
    is_port = bool(user) or host[0] == "[" or int(number) == SSH_PORT or int(number) > MOST_RANKS
    if is_port and host[0] == "[" and not is_ipv6(host[1:-1]):
        return None  # a node set, which says itself what is wrong with it
    text = f"{word!r} is not a node name"
    if is_port:
        return Foreign(text, f"for port {number} write {_line(host, number, user)}")
    return Foreign(
        text, f"for {number} ranks write '{host} slots={number}', for a port port={number}"
    )


def _line(host: str, port: str, user: str) -> str:
    """The line of a hostfile, as a quoted text."""
    bare = host.strip("[]")
    name = f"NAME host={bare}" if is_ipv6(bare.partition("%")[0]) else host
    words = [name, port and f"port={port}", user and f"user={user}"]
    return f"'{' '.join(filter(None, words))}'"


def _second_word(words: Sequence[str]) -> Foreign | None:
    """What a second word without `=` is, or one that stands alone."""
    first, second = words[:2]
    text = f"{second!r} is not key=value"
    if first.lower() == "rank" and second[:1].isdigit() and any("=" in one for one in words):
        hint = f"a hostfile names no ranks; write each node once, {LINE}, with slots=N for N ranks"
        return Foreign(f"'{first} {second}' is a line of a rankfile of Open MPI", hint)
    if first.lower() in ("host", "hostname", "match") and "=" not in second:
        hint = "a hostfile names it alone: clusterctl reads ~/.ssh/config for the rest"
        return Foreign(f"{first} {second} is a line of ssh_config", hint)
    if second in ("=", ":") or (len(words) > 2 and words[2] in ("=", ":")):
        return Foreign(
            f"{'=' if '=' in words else ':'} has spaces around it", "write key=value in one word"
        )
    if "=" in second:
        return None
    if second.startswith("-"):
        return Foreign(text, "ssh's options are keys here: port=2222, user=NAME, identity=FILE")
    if first.endswith(",") or second.startswith(","):
        return Foreign(text, "write the names of one line without spaces: n1,n2")
    if _NUMBER.fullmatch(second):
        return Foreign(text, f"for {second} ranks write '{first} slots={second}'")
    if _KEY_TYPE.fullmatch(second):
        return Foreign(
            "this is a line of known_hosts", "write known_hosts=FILE behind a node's name"
        )
    if (_IPV4.fullmatch(first) or is_ipv6(first)) and is_node_name(second):
        return Foreign(text, f"write '{second} host={first}'")
    if _IPV4.fullmatch(second) or is_ipv6(second):
        return Foreign(text, f"write '{first} host={second}'")
    if key := re.fullmatch(rf"({'|'.join(KEYS)}):(.+)", second):
        return Foreign(text, f"write {key[1]}={key[2]}")
    if _USER.fullmatch(second) and len(words) == 2:
        return Foreign(
            text, f"for a user write '{first} user={second}', for a label {second}=VALUE"
        )
    return None


def why_foreign_key(
    name: str, key: str, value: str, others: Collection[str] = ()
) -> Foreign | None:
    """A key that is none, and would be a label while something else is meant.

    `others` are all keys of the line.
    """
    if key in (*KEYS, KNOWN_HOSTS):
        return None
    low = key.lower()
    meant = OTHER_WORDS.get(low) or (low if low in (*KEYS, KNOWN_HOSTS) else None)
    if meant is None:
        fits = (
            one for one in (*KEYS, KNOWN_HOSTS) if _is_one_edit(low, one) and _suits(one, value)
        )
        meant = next(fits, None)
    if meant is not None:
        text = f"{key}= is not a key of a hostfile"
        if meant in others:
            hint = f"leave it out, the line has {meant}=; or give a label of your own another name"
            return Foreign(text, hint)
        if meant == "host" and re.search(r"\[\d[^\[\]]*\]", value) and not is_ipv6(value[1:-1]):
            return Foreign(text, f"give each node a line of its own, '{name} host=ADDRESS'")
        return Foreign(text, f"write {meant}={value}, or give a label of your own another name")
    if low.startswith("ansible_"):
        hint = f"keys: {', '.join(KEYS)}; ~/.ssh/config supplies the rest"
        return Foreign(f"{key}= is a variable of ansible", hint)
    if low in ("password", "passwd", "pass"):
        hint = "clusterctl logs in with keys only; remove it from the file"
        return Foreign(f"{key}= of {name} is not a key of a hostfile", hint)
    return None


def _suits(key: str, value: str) -> bool:
    """Whether a value could be meant for the key: part=left is no misspelt port."""
    if key in ("port", "slots"):
        return _NUMBER.fullmatch(value) is not None
    return key != "host" or "." in value or ":" in value or value[-1:].isdigit()


def _is_one_edit(word: str, key: str) -> bool:
    """Whether one letter is missing, too many, another one, or two are exchanged."""
    if word == key or abs(len(word) - len(key)) > 1:
        return False
    pairs = list(zip(word, key, strict=False))
    start = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    left, right = word[start:], key[start:]
    is_exchanged = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return is_exchanged or left[1:] == right[1:] or left[1:] == right or left == right[1:]


def why_other_host(name: str, host: str) -> Foreign | None:
    """What host= holds beside a name or an address."""
    if url := _URL.fullmatch(host):
        return Foreign(f"host={host} is a URL", f"write host={url[2].strip('/') or 'NAME'}")
    user, at, rest = host.rpartition("@")
    if at:
        return Foreign(f"host={host} holds a user", f"write '{name} host={rest} user={user}'")
    bare, _, port = rest.rpartition(":")
    if ":" in rest and not is_ipv6(rest.partition("%")[0]) and _NUMBER.fullmatch(port):
        return Foreign(
            f"host={host} holds a port", f"write '{name} host={bare.strip('[]')} port={port}'"
        )
    if rest[:1] == "[" and is_ipv6(rest[1:-1]):
        return Foreign(f"host={host} is not an address", f"write host={rest[1:-1]}")
    if "/" in rest:
        return Foreign(f"host={host} is a path", "write a name or an address")
    return None
