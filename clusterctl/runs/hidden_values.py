"""Values of --env that ranks have printed: found again in their logs without being kept anywhere.

A run directory has, for its owner only, a salted hash of each. Without it nobody could know them
when the run is over and a bundle of its logs is made.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.payload.secrets.marks import HIDDEN
from trainer.runlog.atomic_file import write_whole
from trainer.runlog.run_files import read_object

FILE = ".hidden-values.json"
SHORTEST = 6  # characters: "1" would mask half of each message
LONGEST = 4096
MOST = 200  # values; each length costs a hash at every word of a log
MOST_IN_ALL = 16 << 10  # characters of all lengths, which one word of a log costs
MAX_BYTES = 64 << 10
_SPACE = re.compile(r"\s")
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
    kept = [
        {"characters": len(line), "sha256": _hash(salt, line), "is_word": not _SPACE.search(line)}
        for line in long
    ]
    text = json.dumps({"schema": 1, "salt": salt, "values": kept}) + "\n"
    write_whole(run_dir / FILE, text, 0o600)


@dataclass(frozen=True, slots=True)
class Values:
    """Finds them by lengths and sums. Most are one word: most words are too short for that."""

    salt: str
    known: frozenset[str]
    sizes: tuple[int, ...]  # the longest first
    spaced: frozenset[int]  # those of sizes that may have spaces inside

    def may_hold(self, text: str) -> bool:
        """Whether a text is long enough, or one of its words where all values are words."""
        if self.spaced and len(text) >= min(self.spaced):
            return True
        words = set(self.sizes) - self.spaced
        return bool(words) and max(map(len, text.split()), default=0) >= min(words)

    def mask(self, text: str) -> str:
        """The text with *** in place of the values."""
        kept, end = list[str](), 0
        for word in re.finditer(r"\S+", text):
            if not self.spaced and word.end() - word.start() < self.sizes[-1]:
                continue
            for begin in (one.start() for one in _BEGIN.finditer(text, word.start(), word.end())):
                if begin < end:
                    continue
                for size in self.sizes:
                    last = len(text) if size in self.spaced else word.end()
                    if last - begin >= size and self._is_known(text[begin : begin + size]):
                        kept += [text[end:begin], HIDDEN]
                        end = begin + size
                        break
        return "".join(kept) + text[end:]

    def _is_known(self, text: str) -> bool:
        return _hash(self.salt, text) in self.known


def masker(run_dir: Path) -> Values | None:
    """What masks them in a text; None of a run without any.

    Raises OSError and ValueError where they cannot be read.
    """
    try:
        found = read_object(run_dir, FILE, MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        values = [
            (str(one["sha256"]), int(one["characters"]), one.get("is_word") is True)
            for one in found["values"]
        ]
        salt = str(found["salt"])
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{run_dir / FILE} is not complete") from error
    sizes = sorted({size for _, size, _ in values}, reverse=True)
    if sizes and (sizes[-1] < SHORTEST or sum(sizes) > MOST_IN_ALL):  # of somebody else's making
        raise ValueError(f"{run_dir / FILE} has lengths that no launch writes")
    spaced = frozenset(size for _, size, is_word in values if not is_word)
    known = frozenset(sha256 for sha256, _, _ in values)
    return Values(salt, known, tuple(sizes), spaced) if sizes else None


def _hash(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt} {text}".encode("utf-8", "surrogateescape")).hexdigest()
