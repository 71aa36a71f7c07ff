"""What a bundle takes of the files of a run: without secrets, in a bounded time.

A directory may be of somebody else's making, and a masker takes as long as its lines want it to.
When the time is over, lines among which there might be a secret are masked whole.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from clusterctl.payload.secrets.marks import HIDDEN, is_secret, may_hold
from clusterctl.payload.secrets.mask import hide, hide_keys, hide_words
from clusterctl.runs.hidden_values import Values
from trainer.runlog.json_file import parse

CLOSE_S = 2.0  # of CPU, for all files of a bundle
LONGEST, DOCUMENT = 128 << 10, 1 << 20  # characters of a text and a document that are looked at
LONGEST_OF_VALUES = 16 << 10  # where a run was given values: each word costs a hash of each length
BLOCK = 8  # lines, which are asked for together
COMMITS = ("commit", "git_commit", "head")  # names of values that have the form of a W&B key


@dataclass(frozen=True, slots=True)
class Masked:
    """`changed` is the number of lines in which something was masked, `whole` of those, or of texts
    in them, that were not looked at."""

    text: str
    changed: int
    whole: int


class Masker:
    """`values` masks those that the run was given by --env; None where it was given none."""

    def __init__(self, values: Values | None, close_s: float = CLOSE_S) -> None:
        self._values = values
        self._longest = LONGEST if values is None else LONGEST_OF_VALUES
        self._until_s = time.thread_time() + close_s
        self._changed = self._whole = 0

    @property
    def is_late(self) -> bool:
        return time.thread_time() >= self._until_s

    def mask(self, name: str, text: str) -> Masked:
        self._changed = self._whole = 0
        if not self._may_hold(text):
            return Masked(text, 0, 0)
        if name.endswith(".json") and len(text) <= DOCUMENT and not self.is_late:
            shown = self._document(text)
            if shown is not None:
                return Masked(shown, self._changed, self._whole)
        before = text.split("\n")
        # A private key has many lines.
        lines = before if name.endswith(".jsonl") else hide_keys(text).split("\n")
        work = self._record if name.endswith(".jsonl") else self._text
        after = list[str]()
        for at in range(0, len(lines), BLOCK):
            block = lines[at : at + BLOCK]
            if not self._may_hold("\n".join(block)):
                after += block
            elif self.is_late:
                after += [HIDDEN] * len(block)
                self._whole += len(block)
            else:
                after += map(work, block)
        changed = sum(old != new for old, new in zip(before, after, strict=True))
        return Masked("\n".join(after), changed, self._whole)

    def _document(self, text: str) -> str | None:
        """None of what is no JSON."""
        try:
            found = parse(text)
        except ValueError:
            return None
        masked = self._without_secrets(found, "")
        return json.dumps(masked, indent=1 if len(text) <= LONGEST else None) + "\n"

    def _record(self, line: str) -> str:
        """A line of JSON that stays JSON: `"tokens": 512` is a number and no secret."""
        if not self._may_hold(line):
            return line
        if not self._is_looked_at(line):
            return HIDDEN
        try:
            found = parse(line)
        except ValueError:
            return self._text(line)
        masked = self._without_secrets(found, "")
        short = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
        is_all = len(short) == len(
            line
        )  # of a name that is there twice, the first one is not found
        return line if masked == found and is_all else json.dumps(masked)

    def _without_secrets(self, value: Any, name: str) -> Any:
        """What is in `"credentials": {…}` is secret, whatever its names are."""
        if isinstance(value, str):
            shown = HIDDEN if is_secret(name) and value else self._text(value, name in COMMITS)
            self._changed += shown != value
            return shown
        if isinstance(value, dict):
            inner = name if is_secret(name) else ""
            return {
                key: self._without_secrets(one, inner or str(key)) for key, one in value.items()
            }
        if not isinstance(value, list):
            return value
        if not is_secret(name) and all(isinstance(one, str) for one in value):
            return self._words(value)
        return [self._without_secrets(one, name) for one in value]

    def _words(self, words: list[str]) -> list[str]:
        """Of a command line, perhaps, in which a word may say that the next one is secret."""
        if not self._may_hold(" ".join(words)):
            return words
        valued = [self._text(one, is_commit=True) for one in words] if self._values else words
        if not self._is_looked_at("".join(words)):
            shown = [HIDDEN] * len(words)
        else:
            shown = hide_words(valued)
        self._changed += sum(old != new for old, new in zip(words, shown, strict=True))
        return shown

    def _text(self, text: str, is_commit: bool = False) -> str:
        """`is_commit` where a name says that it is one, or another masker sees it, too."""
        if not self._may_hold(text):
            return text
        if not self._is_looked_at(text):
            return HIDDEN
        shown = self._values.mask(text) if self._values else text
        return shown if is_commit else hide(shown)

    def _is_looked_at(self, text: str) -> bool:
        is_looked_at = len(text) <= self._longest and not self.is_late
        self._whole += not is_looked_at
        return is_looked_at

    def _may_hold(self, text: str) -> bool:
        if "\\u" in text or may_hold(text):  # JSON writes any letter so
            return True
        return self._values is not None and self._values.may_hold(text)
