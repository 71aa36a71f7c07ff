"""Which steps are skipped, what is said of them, when it is too many, and what a resume continues."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trainer.guards.norm_history import LEAST, NormHistory
from trainer.guards.skips import MOST, WINDOW, SkipGuard


def guard_after(steps: int = LEAST) -> SkipGuard:
    guard = SkipGuard(NormHistory(10.0))
    for step in range(1, steps + 1):
        guard.begin(("a",))
        guard.end(step, 1.0 + step / 1000)
    return guard


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_skipped_from_the_first_step_on(norm: float) -> None:
    guard = SkipGuard(NormHistory(10.0))
    guard.begin(("a",))
    assert guard.is_skipped(norm)
    skip = guard.end(1, norm)
    assert skip is not None
    assert skip.text.startswith(
        f"step 1 is skipped on all ranks: the norm of its gradients is {norm}; "
    )
    assert guard.history.norms == {}


def test_an_absurd_norm_is_skipped_reported_with_its_limit_and_not_remembered() -> None:
    guard = guard_after()
    limit = guard.begin(("a",))
    assert not guard.is_skipped(limit)
    skip = guard.end(LEAST + 1, 1000.0)
    assert skip is not None
    assert (skip.norm, skip.limit, skip.kinds, guard.count) == (1000.0, limit, ("a",), 1)
    assert "is 1000, above the limit 8.2 (medians of the last 200 steps: 1.03 of a)" in skip.text
    assert skip.text.endswith("; once in this run")
    assert len(guard.history.norms["a"]) == LEAST


def test_a_fourth_skip_in_50_steps_is_too_many_and_one_in_51_is_not() -> None:
    guard = guard_after()
    for number, step in enumerate((100, 101, 102, 100 + WINDOW, 101 + WINDOW - 1), 1):
        guard.begin(("a",))
        guard.end(step, math.inf)
        # at step 150 the first one is 50 steps ago; then there are four of 101 to 150
        assert guard.is_exceeded == (number == 5)
    assert len(guard.skipped) == MOST + 1
    assert guard.count == 5


def test_a_resumed_guard_decides_as_the_one_that_went_on() -> None:
    guard = guard_after(70)
    guard.begin(("a",))
    guard.end(71, math.nan)
    again = SkipGuard(NormHistory(10.0))
    again.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    for step, norm in enumerate((1.5, 7.0, 300.0, math.inf, 2.0), 72):
        assert again.begin(("a",)) == guard.begin(("a",))
        assert again.end(step, norm) == guard.end(step, norm)
    assert again.state_dict() == guard.state_dict()


def test_a_state_is_a_copy_that_later_steps_do_not_change() -> None:
    guard = guard_after()
    state = guard.state_dict()
    before = json.dumps(state)
    guard.begin(("a",))
    guard.end(99, 1.0)
    assert json.dumps(state) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norms": []}, "norms"),
        ({"norms": {"a": [1.0, "x"]}}, "norms"),
        ({"norms": {"a": [math.inf]}}, "norms"),
        ({"norms": {"a": [-1.0]}}, "norms"),
        ({"skipped": [1.5]}, "skipped"),
        ({"skipped": None}, "skipped"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
    ],
)
def test_a_damaged_state_is_named(change: dict[str, Any], named: str) -> None:
    state = guard_after().state_dict() | change
    with pytest.raises(ValueError, match=named):
        SkipGuard(NormHistory(10.0)).load_state_dict(state)
