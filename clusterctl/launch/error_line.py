"""The sentence of a rank's log that says why the rank ended, and the lines around it."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHOWN_LINES = 25

_STATED = re.compile(r"error: (?:rank \d+: )?(?P<text>.+)")  # the trainer, and most programs
_FATAL = re.compile(
    r"(?P<text>(?:Fatal Python error|terminate called after throwing|CUDA error).*)"
)
# The last line of a Python traceback: a class name, often with its module, and what str() gave.
_RAISED = re.compile(
    r"(?P<text>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Expired)(?:: .*)?)"
)
# How gloo, NCCL and torch's store word the end of a peer: the peer has the cause, not this rank.
_OF_A_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|remote process exited|ncclRemoteError|"
    r"socket (?:timeout|closed)|broken pipe|failed to recv|Dist(?:Network|Store)Error|Gloo connect",
    re.IGNORECASE,
)


def find(lines: Sequence[str]) -> int | None:
    """Index of the line that states the error; None where no line does."""
    for index in range(len(lines) - 1, -1, -1):
        if _STATED.match(lines[index]) or _FATAL.match(lines[index]):
            return index
    raised: int | None = None
    is_ignored = False  # inside of "Exception ignored in: …", printed while Python ends
    for index, line in enumerate(lines):
        if line.startswith("Exception ignored"):
            is_ignored = True
        elif _RAISED.fullmatch(line):
            raised, is_ignored = (raised if is_ignored else index), False
    return raised


def sentence(lines: Sequence[str]) -> str | None:
    """The error as one line, without its prefix."""
    index = find(lines)
    if index is None:
        return None
    for pattern in (_STATED, _FATAL, _RAISED):
        found = pattern.match(lines[index])
        if found:
            return found["text"].strip()
    return None


def blames_a_peer(text: str) -> bool:
    """Whether this is how a rank ends because another one has ended."""
    return _OF_A_PEER.search(text) is not None


def shown(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a log, or the lines from the error on where those begin earlier."""
    start = max(0, len(lines) - SHOWN_LINES)
    index = find(lines)
    if index is not None:
        start = min(start, index)
    return tuple(lines[start : start + SHOWN_LINES])
