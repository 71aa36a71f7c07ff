"""JSON that somebody else may have written: data of a limited size and depth, or a ValueError."""

from __future__ import annotations

import itertools
import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 256 << 20  # features.json of 10 million bad clips, the longest of ours, is near it
MAX_DEPTH = 100
MAX_DIGITS = 300  # of a whole number: a longer one has no float


def parse(text: str | bytes) -> Any:
    """What a text says. Raises ValueError in words for no JSON, no UTF-8 and deep nesting."""
    deep = ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        found = decoded(text)
    except RecursionError:
        raise deep from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # int() refuses it, with advice for programmers
        raise ValueError("it holds a number of thousands of digits") from None
    level = [found]
    for _ in range(MAX_DEPTH):
        nested = [value for value in level if isinstance(value, (dict, list))]
        lists = (value.values() if isinstance(value, dict) else value for value in nested)
        level = list(itertools.chain.from_iterable(lists))
        if not level:
            return found
    raise deep


def decoded(text: str | bytes) -> Any:
    """As `json.loads`, but each number is one that Python can calculate with. Raises ValueError,
    RecursionError."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _DECODER.decode(text)


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"a number in it has more than {MAX_DIGITS} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError, and ValueError in words for anything else.

    Links are followed; files of a run directory are read by `run_files.read_object`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would let us wait
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no plain file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        return parse_object(file.read(MAX_BYTES))


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object that a text holds. Raises ValueError in words for anything else."""
    found = parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")
    return found
