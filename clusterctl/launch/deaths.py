"""Which rank's death ended a run, and the sentence of its log that says why."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

SETTLE_S = 1.5  # for other nodes' deaths to arrive, of which one may state the cause
# For a likelier cause than one of this weight; an unseen end may have been a good one.
WAITS_S = (0.0, 0.3, SETTLE_S, SETTLE_S, math.inf, SETTLE_S)
SHOWN_LINES = 25

# The trainer and most programs write "error: …"; the interpreter, C++ and CUDA the others.
_STATED = re.compile(
    r"error: (?:rank \d+: )?(?P<text>.+)|"
    r"(?P<fatal>(?:Fatal Python error|terminate called after throwing|CUDA error).*)"
)
# The last line of a Python traceback: a class name, often with its module, and its str().
_ENDINGS = "Error|Exception|Interrupt|Exit|Timeout|Failure|Expired"
_RAISED = re.compile(rf"(?:\w+\.)*\w*(?:{_ENDINGS})(?:: .*)?")
# How gloo, NCCL and torch's store word the end of a peer: the peer has the cause, not this rank.
_OF_A_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|remote process exited|ncclRemoteError|"
    r"socket (?:timeout|closed)|broken pipe|failed to recv|Dist(?:Network|Store)Error|Gloo connect",
    re.IGNORECASE,
)


def _find(lines: Sequence[str]) -> tuple[int, str] | None:
    # Index of the line that states the error, and the error without its prefix.
    for index in range(len(lines) - 1, -1, -1):
        stated = _STATED.match(lines[index])
        if stated:
            return index, (stated["text"] or stated["fatal"]).strip()
    raised: int | None = None
    is_ignored = False  # inside of "Exception ignored in: …", printed while Python ends
    for index, line in enumerate(lines):
        if line.startswith("Exception ignored"):
            is_ignored = True
        elif _RAISED.fullmatch(line):
            raised, is_ignored = (raised if is_ignored else index), False
    return None if raised is None else (raised, lines[raised].strip())


def sentence(lines: Sequence[str]) -> str | None:
    """The error as one line, without its prefix; None where no line states one."""
    found = _find(lines)
    return found and found[1]


def blames_a_peer(text: str) -> bool:
    """Whether this is how a rank ends because another one has ended."""
    return _OF_A_PEER.search(text) is not None


def shown(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a log; from the error on where that is further up."""
    found = _find(lines)
    start = max(0, len(lines) - SHOWN_LINES)
    start = min(start, found[0]) if found else start
    return tuple(lines[start : start + SHOWN_LINES])


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended badly. `code` is None when it is not known, negative for a signal."""

    node: str
    rank: int
    code: int | None
    how: str
    tail: Sequence[str]
    at_s: float  # monotonic time at which the message arrived
    error: str | None = None  # the reason in its log

    @property
    def weight(self) -> int:
        """0 for a likely cause, more for a consequence.

        torchrun sends SIGTERM to the peers of a dead rank. NCCL's watchdog and gloo send SIGABRT,
        so it counts as an exit code; of those an error in the log comes first: ranks log it once.
        """
        if self.code is None:
            return 4
        if self.code == -signal.SIGTERM:
            return 5
        if self.code < 0 and self.code != -signal.SIGABRT:
            return 0
        if self.error is None:
            return 2
        return 3 if blames_a_peer(self.error) else 1


def cause(deaths: Sequence[Death], now_s: float) -> Death | None:
    """The death that ended a run; None while the message of a likelier one may still come."""
    if not deaths:
        return None
    likeliest = min(deaths, key=lambda death: (death.weight, death.at_s))
    first_s = min(death.at_s for death in deaths)
    return likeliest if now_s - first_s >= WAITS_S[likeliest.weight] else None
