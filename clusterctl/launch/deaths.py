"""Which rank's death ended a run, and the sentence of its log that says why."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.launch.causes import texts
from clusterctl.launch.causes.texts import Stated

SETTLE_S = 1.5  # for other nodes' deaths to arrive, of which one may state the cause
# For a likelier cause than one of this weight; an unseen end may have been a good one.
WAITS_S = (0.0, 0.3, SETTLE_S, SETTLE_S, math.inf, SETTLE_S)
SHOWN_LINES = 25
ASKED_TO_STOP = 130  # a rank's exit code after SIGTERM and a checkpoint (trainer.train)
# Signals that this program sends; a rank gets no other one from us. SIGABRT is NCCL's and gloo's.
OURS = (-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGABRT)


def sentence(lines: Sequence[str]) -> str | None:
    """The error as one line, without its prefix; None where no line states one."""
    found = texts.read(lines)
    return None if found is None else found.text


def shown(lines: Sequence[str]) -> tuple[str, ...]:
    """The last lines of a log; from the error on where that is further up."""
    found = texts.find(lines)
    start = max(0, len(lines) - SHOWN_LINES)
    start = min(start, found.at) if found else start
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
    stated: Stated | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        stated = texts.read(self.tail)
        if stated is None and self.error:
            stated = texts.classify(self.error)
        object.__setattr__(self, "stated", stated)

    @property
    def states_own_error(self) -> bool:
        """Whether its log has the reason for its end.

        Of a rank that was ended only the last words count: a traceback further up is of an error
        that the program has survived.
        """
        if self.stated is None or self.stated.kind.is_consequence:
            return False
        was_ended = self.code in (None, ASKED_TO_STOP, *OURS[:3])
        return self.stated.is_last or not was_ended

    @property
    def weight(self) -> int:
        """0 for a likely cause, more for a consequence.

        A signal comes first; SIGTERM and SIGABRT do not count as one: agents send SIGTERM to the
        peers of a dead rank, NCCL's watchdog and gloo send SIGABRT. Then a log that states an error
        of its own, also of a rank whose exit code nobody has seen: of two ranks that end at the
        same moment the log with the reason counts, not the first message.
        """
        is_signal = self.code is not None and self.code < 0
        if is_signal and self.code not in (-signal.SIGTERM, -signal.SIGABRT):
            return 0
        if self.states_own_error:
            return 1
        if self.stated is not None and self.stated.kind.is_consequence:
            return 5 if self.code == -signal.SIGTERM else 3
        if self.code is None:
            return 4
        return 5 if self.code == -signal.SIGTERM else 2

    @property
    def order(self) -> tuple[int, bool, float]:
        """The likeliest cause is the least: evidence first, the earliest event second."""
        return self.weight, self.code == ASKED_TO_STOP, self.at_s


def cause(deaths: Sequence[Death], now_s: float) -> Death | None:
    """The death that ended a run; None while the message of a likelier one may still come."""
    if not deaths:
        return None
    likeliest = min(deaths, key=lambda death: death.order)
    first_s = min(death.at_s for death in deaths)
    return likeliest if now_s - first_s >= WAITS_S[likeliest.weight] else None


def told_later(death: Death, stopped_s: float) -> bool:
    """Whether a death was told after the stop at `stopped_s`, and says nothing but that.

    Not so where its log states an error of its own, or it died of a signal that nobody sends.
    """
    if death.at_s <= stopped_s or death.states_own_error:
        return False
    return death.code is None or death.code >= 0 or death.code in OURS
