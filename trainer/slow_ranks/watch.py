"""Rank 0 judges every step by the figures that ranks exchange anyway, asks all ranks for a reading
of their nodes when a rank becomes slow, and reports who is slow and why as an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from trainer.engine.base import Engine
from trainer.engine.step_figures import StepFigures
from trainer.runlog.slow_ranks import NAME, slow_ranks
from trainer.runlog.slow_reasons import Reading, common_reasons, reasons, unread
from trainer.runlog.telemetry import Event
from trainer.slow_ranks.judge import WINDOW, Floats, Ints, Judge, Slow
from trainer.slow_ranks.reading import Reader, seconds_of

NOTHING, READ, HAND_IN = 0.0, 1.0, 2.0  # what rank 0 asks of all ranks by its figures of a step
LATE_S = 1.5  # behind rank 0; a node that has not read by then hands in what it has
OFTEN_S = 30.0  # between readings
MOST = 8  # ranks of one event

Report = Callable[..., None]  # Journal.event
Key = tuple[int | None, bool]


class SlowRanks:
    """`asks` goes into this rank's figures of the next step."""

    def __init__(self, engine: Engine, report: Report) -> None:
        self._engine, self._report = engine, report
        self._judge = Judge(engine.world) if engine.rank == 0 and engine.world > 1 else None
        self._reader: Reader | None = None
        self._told: dict[Key, dict[str, Any]] = {}
        self._asked_s = -OFTEN_S
        self._stepped_s, self._reads_s = time.monotonic(), 0.0
        self._named_at = 0  # step
        self.asks = NOTHING

    def after(self, step: int, ranks: Sequence[StepFigures], cells: Ints) -> None:
        """Take the figures of a step and the buckets [R, E] of its microbatches (collective when
        rank 0 has asked for it)."""
        asked, now = ranks[0].asks, time.monotonic()
        step_s, self._stepped_s = now - self._stepped_s, now
        if asked == READ:
            self._reads_s = seconds_of(step_s)
            self._reader = Reader(self._engine.device, self._reads_s)
        readings: list[Reading] | None = None
        if asked == HAND_IN:
            mine = self._reader.taken() if self._reader is not None else {}
            readings, self._reader = self._engine.gather_objects(mine), None
        if self._judge is None:
            return
        self.asks = NOTHING
        is_new = self._judge.add(own_seconds(ranks), cells)
        if readings is not None:
            self._tell(step, readings)
        elif self._reader is not None:
            if now - self._asked_s >= self._reads_s + LATE_S:
                self.asks = HAND_IN
        elif is_new:
            self._ask_or_tell(step)

    def _ask_or_tell(self, step: int) -> None:
        assert self._judge is not None
        named = set(map(_key, self._judge.named))
        if named == self._told.keys():
            return
        if named <= self._told.keys():
            self._tell(step, [])
        elif time.monotonic() - self._asked_s >= OFTEN_S:
            self.asks, self._asked_s, self._named_at = READ, time.monotonic(), step

    def _tell(self, step: int, readings: Sequence[Reading]) -> None:
        """Without readings what was said of a rank stands."""
        assert self._judge is not None
        named = self._judge.named
        slow = {one.rank for one in named}
        others = [reading for rank, reading in enumerate(readings) if rank not in slow]
        before, self._told = self._told, {}
        for one in named:
            if readings:
                first = self._first(one.rank, before)
                self._told[_key(one)] = _described(one, first, readings, others)
            elif _key(one) in before:
                self._told[_key(one)] = before[_key(one)]
        if not (before or self._told):
            return  # it was over before its reason was known
        found = list(self._told.values())[:MOST]
        said = slow_ranks(Event(NAME, data={"slow": found}))
        text = "; ".join(one.sentence() for one in said) or "no rank is slow any more"
        left = len(self._told) - len(found)
        text += f"; and {left} more" if left > 0 else ""
        self._report(NAME, text, step=step, slow=found, count=len(self._told), window=WINDOW)

    def _first(self, rank: int | None, before: Mapping[Key, Mapping[str, Any]]) -> int:
        """The first step of the window in which it was found slow, perhaps in another phase."""
        known = [told["since_step"] for (other, _), told in before.items() if other == rank]
        return min(known, default=max(1, self._named_at - WINDOW + 1))


def _key(slow: Slow) -> Key:
    """Slowness of another key has another reason. What slows a model down slows all its phases."""
    return slow.rank, slow.phase == "data"


def _described(
    slow: Slow, since_step: int, readings: Sequence[Reading], others: Sequence[Reading]
) -> dict[str, Any]:
    own = readings[slow.rank] if slow.rank is not None else {}
    if slow.rank is None:
        found = common_reasons(readings, slow.phase)
    else:
        found = reasons(own, others, slow.phase)
    return {
        **asdict(slow),
        "host": own.get("host"),
        "since_step": since_step,
        "reasons": [asdict(reason) for reason in found],
        "not_compared": list(unread(own, others, slow.phase)) if own else [],
    }


def own_seconds(ranks: Sequence[StepFigures]) -> Floats:
    """Seconds [R, P] of a step by rank and phase, in the order of `judge.COMPARED`."""
    rows = [(one.data, one.encode, one.own_forward, one.own_backward) for one in ranks]
    return np.array(rows, np.float64)
