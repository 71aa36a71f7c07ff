from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.model.ring_buffer import CHUNK, NAN, THIN_ROWS, Ring, Thin


def filled(count: int, width: int = 2, limit: int = 120) -> Ring:
    ring = Ring(width, limit)
    for index in range(count):
        ring = ring.append([float(index % 1000)] * width)
    return ring


@given(count=st.integers(0, 400), last=st.integers(0, 400))
def test_newest_rows_come_back_oldest_first(count: int, last: int) -> None:
    column = filled(count).column(1, last)
    expected = [float(index % 1000) for index in range(count)]
    assert column == expected[max(0, count - min(last, len(column))) :]
    assert len(column) >= min(last, count, 120)


def test_memory_is_bounded_and_at_least_the_limit_is_kept() -> None:
    ring = filled(10_000)
    assert 120 <= len(ring) <= 120 + CHUNK
    assert sum(map(len, ring.chunks)) + len(ring.tail) <= (120 + CHUNK) * 2 * 2


@pytest.mark.parametrize("before", [0, 1, 59, 60, 130])
@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 200, 10**12])
def test_empty_rows_at_once_are_as_one_after_the_other(before: int, count: int) -> None:
    start = ring = at_once = Ring(2, limit=100)
    for number in range(before):
        start = ring = at_once = start.append((float(number), 1.0))
    for _ in range(min(count, 500)):
        ring = ring.append(())
    at_once = start.append_empty(count)
    assert repr(at_once.rows(100)) == repr(ring.rows(100))
    assert len(at_once) <= 100 + 2 * CHUNK


def test_appending_leaves_the_ring_before_as_it_was() -> None:
    before = filled(70)
    rows = before.rows()
    before.append([5.0, 6.0])
    assert before.rows() == rows


def test_unknown_is_nan_and_never_zero() -> None:
    ring = Ring(3).append([None, 0.0, math.nan])
    unknown, zero, nan = ring.rows()[0]
    assert math.isnan(unknown)
    assert zero == 0.0
    assert math.isnan(nan)


def test_wider_row_widens_the_past_with_unknown() -> None:
    ring = Ring(1).append([1.0]).append([2.0, 3.0])
    assert ring.column(0) == [1.0, 2.0]
    assert math.isnan(ring.column(1)[0])
    assert ring.column(1)[1] == 3.0


def test_value_beyond_the_format_is_shown_as_its_largest() -> None:
    assert Ring(1).append([1e9]).column(0) == [65504.0]


def test_column_that_is_not_there_is_empty() -> None:
    assert filled(3).column(7) == []
    assert filled(3).column(-1) == []


@pytest.mark.long
def test_thinned_run_keeps_its_ends_and_its_mean() -> None:
    thin = Thin(2)
    for step in range(1, 20_001):
        thin = thin.add(float(step), 1.0 if step % 2 else 3.0)
    rows = thin.rows()
    assert len(rows) <= THIN_ROWS
    assert rows[0][0] < 20
    assert rows[-1][0] > 19_900
    assert all(abs(row[1] - 2.0) < 0.51 for row in rows)


def test_thinned_run_forgets_what_a_resume_does_again() -> None:
    thin = Thin(2)
    for step in range(1, 101):
        thin = thin.add(float(step), 9.0)
    for step in range(51, 61):
        thin = thin.add(float(step), 1.0)
    steps = [row[0] for row in thin.rows()]
    assert steps == sorted(steps)
    assert steps[-1] == 60
    assert [row[1] for row in thin.rows() if row[0] > 50] == [1.0] * 10


def test_thinned_mean_ignores_unknown() -> None:
    thin = Thin(2, stride=2).add(1.0, NAN).add(2.0, 4.0)
    assert thin.rows() == [(1.5, 4.0)]
