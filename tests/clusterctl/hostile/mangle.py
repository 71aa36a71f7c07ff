"""Answers that no payload gives: genuine ones changed in many ways, and some that were never one."""

from __future__ import annotations

import base64
import copy
import functools
import json
import random
import threading
import zlib
from typing import Any

ESCAPES = ["\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x9b2J", "\u202egnp.exe", "\ud800", "[/x]", "[red]", "a\nb\rc", "\0"]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -1e308, 1e308, "", "0", "x" * 9000,
    [], {}, [[]], [None] * 40, {"a": 1}, [{}], [[1, 2], [3]], {"pid": 1}, "../../../etc/passwd", *ESCAPES,
]  # fmt: skip


_lock = threading.Lock()
_given = [0]


def answers() -> int:
    """How many were given so far."""
    return _given[0]


def count() -> None:
    with _lock:  # nodes speak in threads
        _given[0] += 1


def mangle(rng: random.Random, line: bytes) -> bytes:
    """`line`, or something in its place, as a hostile node might send it; ends with a newline or not."""
    count()
    way = rng.random()
    if way < 0.70:
        return _in_tree(rng, line)
    if way < 0.80:
        return _in_bytes(rng, line)
    if way < 0.84:
        return rng.randbytes(rng.randrange(2000))
    if way < 0.88:
        return rng.choice([b"", b"\n", b"{}\n", b"[]\n", b"null\n", b"7\n", b'"x"\n', b"NaN\n", b"\xff\xfe\n", b"{" * 3000 + b"\n"])  # fmt: skip
    if way < 0.90:
        return rng.choice([b"[", b'{"a":', b'[{"":']) * 50_000 + b"\n"
    if way < 0.92:
        return line + line
    if way < 0.93:
        return b"y" * rng.randrange(1 << 21)
    return line.replace(b'"', rng.choice([b'"\\u001b]0;x\\u0007', b'"\\ud800', b'"\\u202e']), rng.randrange(1, 50))  # fmt: skip


def _in_tree(rng: random.Random, line: bytes) -> bytes:
    value = json.loads(line)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        value = _change(rng, value)
    return json.dumps(value).encode() + b"\n"


def _change(rng: random.Random, value: Any) -> Any:
    """One place of the tree is changed: its value, its absence, its number, or what is packed in it."""
    places = list(_places(value))
    if not places:
        return _value(rng)
    holder, key = rng.choice(places)
    way = rng.random()
    if way < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif way < 0.25 and isinstance(holder, dict):
        holder[rng.choice(["z", "", "__class__", *ESCAPES])] = _value(rng)
    elif way < 0.35 and isinstance(holder[key], str):
        at = rng.randrange(len(holder[key]) + 1)
        holder[key] = holder[key][:at] + rng.choice(ESCAPES) + holder[key][at:]
    elif way < 0.40 and isinstance(holder[key], list):
        few = max(2, 2000 // (1 + len(holder[key])))
        holder[key] = copy.deepcopy(holder[key]) * rng.randrange(2, few + 1)
    elif way < 0.50 and isinstance(holder[key], str) and len(holder[key]) > 200:
        holder[key] = _packed(rng, holder[key])
    elif way < 0.55 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e290:
        holder[key] = holder[key] * rng.choice([-1, 1e9, 0, 1.5]) + rng.choice([0, 1])
    else:
        holder[key] = _value(rng)
    return value


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))  # else a later change would put it into itself


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(inner)


@functools.cache  # it takes a second to make
def _bomb() -> str:
    packer = zlib.compressobj(9)  # piece by piece: what the test itself takes is measured, too
    pieces = [packer.compress(b" " * (1 << 20)) for _ in range(200)]
    return base64.b64encode(b"".join(pieces) + packer.flush()).decode()


def _packed(rng: random.Random, text: str) -> str:
    """What is zipped inside is changed, or is a bomb."""
    if rng.random() < 0.2:
        return _bomb()
    try:
        inner = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 1 << 20)
        return base64.b64encode(zlib.compress(_in_tree(rng, inner))).decode()
    except (ValueError, zlib.error):
        return text[: rng.randrange(len(text))]


def _in_bytes(rng: random.Random, line: bytes) -> bytes:
    data = bytearray(line)
    for _ in range(rng.randrange(1, 20)):
        at = rng.randrange(len(data)) if data else 0
        way = rng.random()
        if way < 0.4 and data:
            data[at] = rng.randrange(256)
        elif way < 0.7:
            del data[at : at + rng.randrange(50)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(20))
    return bytes(data)
