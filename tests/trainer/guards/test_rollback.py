"""Where a run goes back to, which microbatches that leaves out, and how often it may."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config.load import Config
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor
from trainer.errors import Diverged
from trainer.guards.guards import Guards
from trainer.guards.rollback import Back, RollBack, between, choose, on_the_way
from trainer.resume import continued
from trainer.runlog.telemetry import StepRecord


def paths(*steps: int) -> list[Path]:
    return [Path(f"/run/epoch0-global_step{step}") for step in steps]


def asked(first: int) -> RollBack:
    error = RollBack("the loss is high")
    error.first, error.tries, error.point = first, 1, first + 49
    return error


@pytest.mark.parametrize(
    ("made", "way"),
    [
        ((), ()),
        ((10, 20, 30), (10, 20, 30)),
        ((10, 20, 30, 20), (10, 20)),  # saved again after going back
        ((10, 20, 30, 40, 20, 25), (10, 20, 25)),
        ((30, 10), (10,)),
    ],
)
def test_steps_of_before_a_rollback_are_not_gone_back_to(
    made: tuple[int, ...], way: tuple[int, ...]
) -> None:
    assert on_the_way(paths(*made)) == paths(*way)


def test_the_newest_checkpoint_before_the_spike_is_chosen() -> None:
    back = choose(asked(31), paths(10, 20, 30, 40), Cursor(2, 8))
    assert (back.source, back.place) == (paths(30)[0], Cursor(2, 8))
    assert "back to epoch0-global_step30, rollback 1 of 2; the data continue in epoch 2 after 8" in back.text  # fmt: skip
    assert choose(asked(30), paths(10, 20, 30, 40), Cursor()).source == paths(20)[0]


def test_without_an_older_checkpoint_the_run_ends_with_the_reason() -> None:
    text = "the loss is high; there is no checkpoint of a step before 10 to go back to"
    with pytest.raises(Diverged, match=text):
        choose(asked(10), paths(10, 20), Cursor())


def test_the_run_that_continues_takes_its_place_from_the_checkpoint() -> None:
    config = Config(start_from_scratch=True, start_epoch=1, start_step=2, load="/before")
    found = continued(config, paths(30)[0])
    assert (found.load, found.start_from_scratch) == ("/run/epoch0-global_step30", False)
    assert (found.start_epoch, found.start_step) == (None, None)


def test_skipped_microbatches_are_those_of_whole_steps_between_two_places() -> None:
    def steps(cursor: Cursor, group: int) -> int:
        return (25 - cursor.consumed) // group  # 25 microbatches an epoch

    plan: Any = SimpleNamespace(steps=steps)
    assert between(plan, Cursor(1, 4), Cursor(1, 12), 2) == [(1, 4, 12)]
    assert between(plan, Cursor(1, 4), Cursor(3, 6), 2) == [(1, 4, 24), (2, 0, 24), (3, 0, 6)]
    assert between(plan, Cursor(0, 24), Cursor(1, 0), 2) == []


def guards(**settings: Any) -> tuple[Guards, list[str]]:
    plan: Any = SimpleNamespace(buckets=Buckets.parse({"144p": {1: (1.0, 8)}}))
    events: list[str] = []
    journal: Any = SimpleNamespace(event=lambda name, text, **_: events.append(name))
    return Guards(Config(**settings), plan, journal), events


def step(number: int, norm: float) -> StepRecord:
    return StepRecord(number, 100, 0, 1, 1, 1.0, norm, 0.1, 1.0)


def until_end(ours: Guards, first: int) -> RollBack | Diverged:
    """What ends steps whose gradients are not finite."""
    ours._of_plan = SimpleNamespace(before=lambda *_: ("a",))  # type: ignore[assignment]
    for number in range(first, first + 9):
        ours.begin(Cursor(0, 1), 1)
        try:
            ours.end(step(number, float("nan")))
        except (RollBack, Diverged) as error:
            return error
    raise AssertionError("no end")


def test_too_many_skipped_steps_go_back_too_where_that_is_allowed() -> None:
    ours, events = guards()
    error = until_end(ours, 7)
    assert isinstance(error, RollBack)
    assert (error.first, error.tries, error.point, error.on_all_ranks) == (7, 1, 10, True)
    assert "the steps 7, 8, 9 and 10 are skipped, more than 3 in 50 steps" in str(error)
    assert events == ["skip"] * 4
    ours, _ = guards(guard_rollback=False)
    error = until_end(ours, 7)
    assert isinstance(error, Diverged)
    assert error.on_all_ranks


def test_a_third_rollback_before_the_point_is_passed_ends_the_run_and_after_it_counts_anew() -> (
    None
):
    for tries, ended in ((1, RollBack), (2, Diverged)):
        ours, _ = guards()
        ours.went_back(Back(paths(5)[0], Cursor(), tries, 20, ""))
        again, _ = guards()
        again.load_state_dict(ours.state_dict())
        error = until_end(again, 6)
        assert type(error) is ended
        if isinstance(error, RollBack):
            assert (error.tries, error.point) == (2, 20)
    ours, _ = guards()
    ours.went_back(Back(paths(5)[0], Cursor(), 2, 20, ""))
    error = until_end(ours, 21)
    assert isinstance(error, RollBack)
    assert error.tries == 1


@pytest.mark.parametrize("damage", [{"skips": 1}, {"spikes": []}, {"rollbacks": None}, {"rollbacks": {"tries": "1", "point": 0}}])  # fmt: skip
def test_a_damaged_state_of_the_guards_is_named(damage: dict[str, Any]) -> None:
    ours, _ = guards()
    with pytest.raises(ValueError, match=next(iter(damage))):
        ours.load_state_dict(ours.state_dict() | damage)


def test_guards_that_are_off_ask_nothing_and_read_the_state_of_those_that_are_on() -> None:
    on, _ = guards()
    off, _ = guards(guard_skip=False, guard_rollback=False)
    off.load_state_dict(on.state_dict())
    assert off.state_dict() | {"rollbacks": None} == {"schema": 1, "skips": None, "spikes": None, "rollbacks": None}  # fmt: skip
    assert not off.is_skipped(float("nan"))
    on.load_state_dict(off.state_dict())
    on.load_state_dict({})  # of an older checkpoint
