"""Values in ssh_config, read as OpenSSH reads them: words, times, ports, jump hosts, %-tokens."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_DIGITS = 12  # Python itself refuses to read numbers of thousands of digits
_DIGITS = re.compile(r"\+?\d+", re.ASCII)
_TIME = re.compile(r"(\+?\d+)([smhdw]?)", re.IGNORECASE | re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MOST_SECONDS = 2**31 - 1
_HOP = re.compile(
    r"(?P<scheme>ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^\]\s]+\]|[^:/@\[\]\s]+)(?::(?P<port>\w+))?/?"
)
_TOKEN = re.compile(r"%(.?)|\$\{([^}]*)(\}?)", re.DOTALL)


class BadValue(ValueError):
    """A value that ssh refuses as well, or that this backend cannot honour; the text says why."""


def split_words(text: str) -> list[str]:
    """Words: quotes of both kinds, backslashes before quotes and spaces, a # comment."""
    words: list[str] = []
    word: str | None = None  # None between words
    quote = ""
    chars = iter(range(len(text)))
    for position in chars:
        char, after = text[position], text[position + 1 : position + 2]
        if not quote and char in " \t":
            words += [] if word is None else [word]
            word = None
        elif word is None and char == "#":
            break
        elif char == "\\" and after and (after in "'\"\\" or (after == " " and not quote)):
            word = (word or "") + after
            next(chars)
        elif char in (quote or "'\""):
            word, quote = word or "", "" if quote else char
        else:
            word = (word or "") + char
    if quote:
        raise BadValue("a quote is not closed")
    return words if word is None else [*words, word]


def seconds(text: str) -> int:
    """`90`, `1m`, `1h30m` in seconds. Raises `BadValue`."""
    parts = _TIME.findall(text)
    if not text or "".join(number + unit for number, unit in parts) != text:
        raise BadValue(f"{text!r} is not a valid duration")
    total = sum(int(number[:MAX_DIGITS]) * _SECONDS[unit.lower()] for number, unit in parts)
    if total > _MOST_SECONDS:
        raise BadValue(f"{text!r} is too long")
    return total


def whole_number(text: str) -> int:
    if not _DIGITS.fullmatch(text) or len(text) > MAX_DIGITS:
        raise BadValue(f"{text!r} is not a number")
    return int(text)


def port_number(text: str) -> int:
    """A port from 1 to 65535, or the name of a service. Raises `BadValue`."""
    number = int(text[:MAX_DIGITS]) if _DIGITS.fullmatch(text) else 0
    with suppress(OSError):  # no such service
        number = number or socket.getservbyname(text, "tcp")
    if not 1 <= number <= 65535:
        raise BadValue(f"{text!r} is not a port")
    return number


@dataclass(frozen=True, slots=True)
class Hop:
    host: str
    port: int | None
    user: str | None

    def expanded(self, tokens: Mapping[str, str]) -> Hop:
        """With its %-tokens replaced. Raises `BadValue`."""
        user = None if self.user is None else expand(self.user, tokens)
        return Hop(expand(self.host, tokens), self.port, user)


def parse_jump(text: str) -> tuple[Hop, ...]:
    """`user@gate:2222,inner` as hops from here to the node; none for `none`. Raises `BadValue`."""
    if text.lower() == "none":
        return ()
    hops = []
    for part in text.split(","):
        if " " in part or "\t" in part:
            raise BadValue(f"{part!r} has a space in it, which only some versions of ssh accept")
        match = _HOP.fullmatch(part)
        # In a URI a user is percent-encoded and may have parameters.
        if not match or (match["scheme"] and set(match["user"] or "") & set("@%;")):
            raise BadValue(f"{part!r} is not [user@]host[:port]")
        port = port_number(match["port"]) if match["port"] else None
        hops.append(Hop(match["host"].strip("[]"), port, match["user"]))
    return tuple(hops)


def one_of(text: str, *choices: str) -> str:
    """The choice that `text` names in any case; `true` and `false` mean yes and no."""
    word = {"true": "yes", "false": "no"}.get(text.lower(), text.lower())
    if word not in choices:
        raise BadValue(f"{text!r} must be one of {', '.join(choices)}")
    return word


def expand(text: str, tokens: Mapping[str, str], environment: bool = False) -> str:
    """Put %-tokens, and with `environment` also ${VARIABLES}, into a text. Raises `BadValue`."""

    def put(found: re.Match[str]) -> str:
        if found[2] is None:
            value = "%" if found[1] == "%" else tokens.get(found[1])
            wrong = f"%{found[1]} in {text!r} has no meaning here"
        elif not environment:
            return found[0]
        else:
            value = os.environ.get(found[2]) if found[3] and found[2] else None
            wrong = f"{found[0]} in {text!r} is not set in the environment"
        if value is None:
            raise BadValue(wrong)
        return value

    return _TOKEN.sub(put, text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """A leading ~ or ~user, then tokens and variables. Raises `BadValue`."""
    if text.startswith("~"):
        try:
            text = str(Path(text).expanduser())
        except RuntimeError:
            raise BadValue(f"{text!r}: no such user") from None
    return expand(text, tokens, environment=True)
