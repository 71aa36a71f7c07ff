from __future__ import annotations

import pytest

from dashboards.feeds.open_stream import ClockOffset


def test_offset_is_known_to_half_of_the_round_trip() -> None:
    clock = ClockOffset()
    assert clock.best() == (None, None)
    clock.add(100.0, 102.6, 100.2)
    assert clock.best() == pytest.approx((2.5, 0.1))


def test_quickest_answer_counts() -> None:
    clock = ClockOffset()
    for way_s in (0.4, 0.002, 0.9):
        clock.add(100.0, 100.0 + 0.7 * way_s, 100.0 + way_s)
    assert clock.best() == pytest.approx((0.0004, 0.001))


def test_jump_of_a_clock_makes_older_answers_void() -> None:
    clock = ClockOffset()
    clock.add(100.0, 100.001, 100.002)
    clock.add(105.0, 107.55, 105.1)
    assert clock.best() == pytest.approx((2.5, 0.05))


def test_heads_own_clock_that_jumps_back_is_no_answer() -> None:
    clock = ClockOffset()
    clock.add(100.0, 100.0, 97.0)
    assert clock.best() == (None, None)
