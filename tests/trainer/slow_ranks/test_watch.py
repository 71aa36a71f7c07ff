"""Rank 0 asks for readings through the figures of a step, and tells what it found as one event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from trainer.engine.step_figures import StepFigures
from trainer.runlog.slow_ranks import slow_ranks
from trainer.runlog.telemetry import Event
from trainer.slow_ranks import watch
from trainer.slow_ranks.watch import SlowRanks

CELLS = np.zeros((4, 1), np.int64)


@dataclass
class FakeReader:
    """What this rank has read, at once."""

    device: torch.device
    seconds: float

    def taken(self) -> dict[str, Any]:
        return {"host": "n1", "quota": 0.0, "cpu_wait": 0.0}


@dataclass
class FakeEngine:
    """One of four ranks; the others' readings are scripted."""

    rank: int = 0
    world: int = 4
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    gathers: int = 0

    def gather_objects(self, mine: Any) -> list[Any]:
        self.gathers += 1
        return [mine, {"host": "n1", "quota": 0.4, "cpu_wait": 0.0}, mine, mine]


class Training:
    """Steps of four ranks, of which some take longer in a phase."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "Reader", FakeReader)
        monkeypatch.setattr(watch, "LATE_S", 0.0)
        monkeypatch.setattr(watch, "seconds_of", lambda step_s: 0.0)
        monkeypatch.setattr(watch, "OFTEN_S", 0.0)
        self.engine, self.events, self.step = FakeEngine(), list[Event](), 0
        self.subject = SlowRanks(self.engine, self._report)  # type: ignore[arg-type]

    def _report(self, name: str, text: str, *, step: int, **data: Any) -> None:
        self.events.append(Event(name, text, data, step))

    def run(self, steps: int, phase: str = "own_forward", **slow: float) -> None:
        for _ in range(steps):
            self.step += 1
            times = [
                {"data": 0.01, "encode": 0.1, "own_forward": 0.2, "own_backward": 0.4}
                for _ in range(4)
            ]
            for rank, factor in slow.items():
                times[int(rank[1:])][phase] *= factor
            figures = [StepFigures(**one) for one in times]
            figures[0].asks = self.subject.asks
            self.subject.after(self.step, figures, CELLS)


def test_a_slow_rank_is_told_once_with_its_reason_and_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    training.run(100)
    assert (training.events, training.engine.gathers) == ([], 0)
    training.run(100, r1=1.5)
    (event,) = training.events
    assert training.engine.gathers == 1
    assert event.step is not None
    assert event.step <= 200
    (one,) = slow_ranks(event)
    assert (one.rank, one.host, one.phase) == (1, "n1", "forward")
    assert one.since_step in range(85, 115)
    assert [reason.name for reason in one.reasons] == ["quota"]
    assert event.text == one.sentence()
    training.run(100)
    assert [event.text for event in training.events[1:]] == ["no rank is slow any more"]
    assert training.engine.gathers == 1


def test_a_second_slow_rank_is_added_and_the_first_keeps_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    training.run(100)
    training.run(100, r1=1.5)
    training.run(100, r1=1.5, r3=1.6)
    training.run(100, r1=1.5)
    told = [{one.rank: one.why for one in slow_ranks(event)} for event in training.events]
    assert [set(ranks) for ranks in told] == [{1}, {1, 3}, {1}]
    assert all("quota holds it back 40%" in ranks[1] for ranks in told)
    assert "reason unknown" in told[1][3]


def test_what_slows_all_ranks_is_told_with_what_was_read_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    waiting = {"host": "n1", "quota": 0.0, "cpu_wait": 0.5}
    monkeypatch.setattr(training.engine, "gather_objects", lambda mine: [waiting] * 4)
    training.run(100)
    training.run(100, r0=1.5, r1=1.5, r2=1.5, r3=1.5)
    (one,) = slow_ranks(training.events[0])
    assert (one.rank, one.why) == (None, "their processes wait for a CPU 50% of the time")


def test_other_ranks_judge_nothing_and_hand_in_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.engine.rank = 2
    training.subject = SlowRanks(training.engine, training._report)  # type: ignore[arg-type]
    for asks in (watch.NOTHING, watch.READ, watch.HAND_IN, watch.NOTHING):
        figures = [StepFigures(asks=asks), *(StepFigures() for _ in range(3))]
        training.subject.after(1, figures, CELLS)
    assert (training.engine.gathers, training.events) == (1, [])
    assert training.subject.asks == watch.NOTHING


def test_a_run_of_one_rank_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.engine.world = 1
    training.subject = SlowRanks(training.engine, training._report)  # type: ignore[arg-type]
    training.run(200)
    assert training.events == []
