"""Young's interval and the share of time that it leaves, against published arithmetic."""

from __future__ import annotations

import math

import pytest

from clusterctl.checkpoints.interval import Costs, row_steps, steps_of

HOUR, MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(
    ("mtbf_s", "stall_s", "best_s", "kept"),
    [  # kept with D and R of 30 and 15 min, 2 and 5 min, 30 s and 2 min
        (4 * HOUR, 60.0, 22 * MINUTE, (0.721, 0.880, 0.898)),
        (4 * HOUR, 5.0, 6.3 * MINUTE, (0.786, 0.944, 0.963)),
        (4 * HOUR, 0.5, 2 * MINUTE, (0.804, 0.963, 0.981)),
        (42 * HOUR, 5.0, 20 * MINUTE, (0.974, 0.989, 0.991)),
    ],
)
def test_interval_and_ettr_are_those_of_the_formula(
    mtbf_s: float, stall_s: float, best_s: float, kept: tuple[float, ...]
) -> None:
    times = ((30 * MINUTE, 15 * MINUTE), (2 * MINUTE, 5 * MINUTE), (30.0, 2 * MINUTE))
    for (detect_s, restart_s), ettr in zip(times, kept, strict=True):
        costs = Costs(stall_s, mtbf_s, 0.0, detect_s, restart_s)
        assert costs.best_s == pytest.approx(best_s, rel=0.03)
        assert costs.ettr(costs.best_s) == pytest.approx(ettr, abs=0.001)


def test_no_other_interval_keeps_more() -> None:
    costs = Costs(5.0, 4 * HOUR, 20.0, 60.0, 120.0)
    best = costs.ettr(costs.best_s)
    assert all(costs.ettr(costs.best_s * factor) < best for factor in (0.5, 0.9, 1.1, 2.0))


def test_the_interval_is_not_shorter_than_a_save() -> None:
    costs = Costs(0.01, 3600.0, 40.0, 60.0, 120.0)
    assert math.sqrt(2 * 0.01 * 3600) < 40
    assert costs.best_s == pytest.approx(40.01)
    assert costs.is_limited_by_writing


def test_a_checkpoint_counts_only_when_it_is_complete() -> None:
    quick, slow = (Costs(1.0, 3600.0, write_s, 0.0, 0.0) for write_s in (0.0, 36.0))
    assert quick.ettr(100.0) - slow.ettr(100.0) == pytest.approx(0.01)


def test_nothing_is_kept_where_failures_come_faster_than_recovery() -> None:
    assert Costs(1.0, 60.0, 0.0, 600.0, 300.0).ettr(30.0) == 0.0


@pytest.mark.parametrize(
    ("interval_s", "step_s", "steps"),
    [(415.7, 9.5, 44), (1234.0, 1.0, 1200), (0.1, 9.0, 1), (16.0, 1.0, 16), (99.6, 1.0, 100)],
)
def test_steps_have_two_digits_and_are_at_least_1(
    interval_s: float, step_s: float, steps: int
) -> None:
    assert steps_of(interval_s, step_s) == steps


def test_the_table_is_around_the_best_and_holds_the_present_one() -> None:
    assert row_steps(40, 100, None) == [10, 20, 40, 80, 100, 160]
    assert row_steps(40, 0, 50) == [10, 20, 40]
