"""Values of --env that ranks have printed: found again in their logs without being kept anywhere.

A run directory has, for its owner only, a salted hash of each. Without it nobody could know them
when the run is over and a bundle of its logs is made.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from clusterctl.payload.files.private import replace_file
from clusterctl.payload.mask_secrets import HIDDEN
from trainer.runlog.run_files import read_object

FILE = ".hidden-values.json"
SHORTEST = 6  # characters: "1" would mask half of each message
LONGEST = 4096
MOST = 200  # values; each length costs a hash at every word of a log
MOST_IN_ALL = 16 << 10  # characters of all lengths, which one word of a log costs
MAX_BYTES = 64 << 10
# A printed value begins at the begin of a line or behind one of these.
_BEGIN = re.compile(r"(?:^|(?<=[^A-Za-z0-9]))(?=\S)", re.MULTILINE)


def write(run_dir: Path, values: Iterable[str]) -> None:
    """A run without such values gets no file. Raises OSError."""
    salt = secrets.token_hex(16)
    # Of a key with lines each is a value.
    lines = {line.strip() for value in values for line in value.splitlines()}
    long = sorted(line for line in lines if SHORTEST <= len(line) <= LONGEST)[:MOST]
    sizes, left = set[int](), MOST_IN_ALL
    for size in sorted(set(map(len, long))):  # the shortest first: more values have these
        left -= size
        sizes |= {size} if left >= 0 else set()
    long = [line for line in long if len(line) in sizes]
    if not long:
        return
    kept = [{"characters": len(line), "sha256": _hash(salt, line)} for line in long]
    text = json.dumps({"schema": 1, "salt": salt, "values": kept}) + "\n"
    replace_file(str(run_dir / FILE), text.encode())


def masker(run_dir: Path) -> Callable[[str], str]:
    """What masks them in a text; that of a run without any leaves it as it is.

    Raises OSError and ValueError where they cannot be read.
    """
    try:
        found = read_object(run_dir, FILE, MAX_BYTES)
    except FileNotFoundError:
        return lambda text: text
    try:
        salt = str(found["salt"])
        known = {str(one["sha256"]) for one in found["values"]}
        sizes = sorted({int(one["characters"]) for one in found["values"]}, reverse=True)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{run_dir / FILE} is not complete") from error
    if sizes and (sizes[-1] < SHORTEST or sum(sizes) > MOST_IN_ALL):  # of somebody else's making
        raise ValueError(f"{run_dir / FILE} has lengths that no launch writes")

    def mask(text: str) -> str:
        kept, end = [], 0
        for begin in (one.start() for one in _BEGIN.finditer(text) if sizes):
            if begin < end:
                continue
            for size in sizes:
                if len(text) - begin >= size and _hash(salt, text[begin : begin + size]) in known:
                    kept += [text[end:begin], HIDDEN]
                    end = begin + size
                    break
        return "".join(kept) + text[end:]

    return mask


def _hash(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt} {text}".encode("utf-8", "surrogateescape")).hexdigest()
