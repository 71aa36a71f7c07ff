"""Saves that fail while a run trains on: when the next one is tried, and when that is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint.saving import Rank, Together, in_threads
from trainer.checkpoint import failed_saves
from trainer.checkpoint.async_saver import Saved
from trainer.checkpoint.failed_saves import FailedSaves
from trainer.checkpoint.files import refusal
from trainer.config.load import Config
from trainer.errors import CheckpointError

DONE = [Saved(Path("epoch0-global_step9"), 9, 1.0, 0.1)]


def fails() -> list[Saved]:
    raise refusal(["rank 1: No space left on device"])


def saves(**options: Any) -> tuple[FailedSaves, list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []

    def event(name: str, text: str, *, step: int, next: int) -> None:
        assert name == "save-failed"
        assert "No space left on device" in text
        assert f"next try is after step {next}" in text
        told.append((name, step))

    return FailedSaves(Rank(Together(1), 0), Config(**options), event), told  # type: ignore[arg-type]


def test_pauses_between_tries_grow_up_to_the_usual_interval_until_one_succeeds() -> None:
    one, told = saves(ckpt_every=30)
    step, tries = 100, []
    for _ in range(4):
        assert one.take(fails, step) == []
        step = next(at for at in range(step, step + 2000) if one.is_due(at))
        tries.append(step)
    assert tries == [110, 120, 150, 180]  # 120, 150 and 180 are due in any case
    assert len(told) == 4
    assert one.take(list, 180) == []  # begun, not complete
    assert one.take(lambda: DONE, 181) == DONE
    assert not any(map(one.is_due, range(5000)))
    one.take(fails, 300)
    assert one.is_due(310)


def test_pauses_without_an_interval_double_up_to_a_thousand_steps() -> None:
    one, _ = saves()
    pauses, step = [], 0
    for _ in range(10):
        one.take(fails, step)
        later = next(at for at in range(step + 1, step + 2000) if one.is_due(at))
        pauses.append(later - step)
        step = later
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_time_without_a_checkpoint_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(failed_saves.time, "monotonic", lambda: now[0])
    one, _ = saves(ckpt_retry_hours=2.0)
    for hours in (0.0, 1.0, 1.9):
        now[0] = 1000.0 + 3600 * hours
        one.take(fails, 1)
    one.take(lambda: DONE, 2)
    one.take(fails, 3)  # the time begins again
    now[0] += 7200.0
    with pytest.raises(CheckpointError, match="No space left on device"):
        one.take(fails, 4)


def test_rank_0s_clock_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    group, results = Together(2), [[], []]  # type: tuple[Together, list[list[str]]]

    def work(rank: int) -> None:
        one = FailedSaves(Rank(group, rank), Config(ckpt_retry_hours=1.0), lambda *_, **__: None)  # type: ignore[arg-type]
        one._since_s = -1e9 if rank == 1 else None  # by its own it would be over
        for _ in range(2):
            try:
                one.take(fails, 1)
                results[rank].append("goes on")
            except CheckpointError:
                results[rank].append("ends")
            one._since_s = -1e9 if rank == 0 else None

    in_threads(work, 2)
    assert results == [["goes on", "ends"]] * 2


@pytest.mark.parametrize("hours", [0.0, 24.0])
def test_what_ranks_have_not_agreed_on_or_may_not_fail_is_raised(hours: float) -> None:
    one, told = saves(ckpt_retry_hours=hours)
    alone = CheckpointError("of this rank alone")

    def own() -> list[Saved]:
        raise alone

    with pytest.raises(CheckpointError, match="of this rank alone"):
        one.take(own, 1)
    if not hours:
        with pytest.raises(CheckpointError, match="No space left"):
            one.take(fails, 1)
    assert told == []
