"""JSON that somebody else may have written: data of a limited size and depth, or a ValueError; and
its values: of a type and within limits, or none."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 256 << 20  # features.json of 10 million bad clips, the longest of ours, is near it
MAX_DEPTH = 100
MAX_DIGITS = 300  # of a whole number: a longer one has no float
_SHOWN = 60  # characters of a name
LARGEST = (1 << 53) - 1  # up to which a float has every whole number


def parse(text: str | bytes, *, once: bool = False) -> Any:
    """What a text says. Raises ValueError in words for no JSON, no UTF-8, deep nesting, and with
    `once` for a key that an object holds twice."""
    deep = ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        found = decoded(text, once=once)
    except RecursionError:
        raise deep from None
    level = [found]
    for _ in range(MAX_DEPTH):
        nested = [value for value in level if isinstance(value, (dict, list))]
        lists = (value.values() if isinstance(value, dict) else value for value in nested)
        level = list(itertools.chain.from_iterable(lists))
        if not level:
            return found
    raise deep


def decoded(text: str | bytes, *, once: bool = False) -> Any:
    """As `json.loads`, but each number is one that Python can calculate with. Raises ValueError,
    RecursionError."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return (_ONCE if once else _DECODER).decode(text)


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"a number in it has more than {MAX_DIGITS} digits")
    return int(digits)


def _of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:_SHOWN]!r} stands in it twice")
    return found


_DECODER = json.JSONDecoder(parse_int=_whole)
_ONCE = json.JSONDecoder(parse_int=_whole, object_pairs_hook=_of_pairs)


def read_object(path: Path, most: int = MAX_BYTES, *, once: bool = False) -> dict[str, Any]:
    """The object in a file of at most so many bytes; `once`: with no key twice. Raises OSError, and
    ValueError in words for anything else.

    Links are followed; files of a run directory are read by `run_files.read_object`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would let us wait
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no plain file")
        if found.st_size > most:
            raise ValueError(f"it has more than {most:,} bytes")
        return parse_object(file.read(most), once=once)


def parse_object(text: str | bytes, *, once: bool = False) -> dict[str, Any]:
    """The object that a text holds. Raises ValueError in words for anything else."""
    found = parse(text, once=once)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")
    return found


def object_of(text: str | bytes) -> dict[str, Any]:
    """As `parse_object`; {} for a line that is torn or holds something else."""
    try:
        return parse_object(text)
    except ValueError:
        return {}


def text(value: object, most: int | None = None) -> str:
    """A text, its first `most` characters; "" for anything else."""
    return value[:most] if isinstance(value, str) else ""


def whole(value: object, least: float = -math.inf, most: float = math.inf) -> int | None:
    """A whole number within these limits, which are in it; None for anything else."""
    return value if type(value) is int and least <= value <= most else None


def count(value: object) -> int | None:
    """A whole number of 0 to `LARGEST`."""
    return whole(value, 0, LARGEST)


def number(value: object, least: float = -1e300, most: float = 1e300) -> float | None:
    """A finite number within these limits; None for anything else, and for true and false."""
    if type(value) is not float and type(value) is not int:
        return None
    return float(value) if least <= value <= most else None
