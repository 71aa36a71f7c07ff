from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.model import units
from dashboards.tui.braille import Scale, area, bar, binned, curve, nice_scale, resampled, spark

NAN = math.nan
numbers = st.floats(allow_nan=True, allow_infinity=True)


def text(rows: list[list[tuple[str, int]]]) -> list[str]:
    return ["".join(part for part, _ in row) for row in rows]


@given(values=st.lists(numbers, max_size=60), width=st.integers(1, 30), height=st.integers(1, 6))
def test_any_numbers_fill_exactly_the_area(values: list[float], width: int, height: int) -> None:
    scale = nice_scale(values)
    assert scale.low < scale.high
    for rows in (
        area(values[: 2 * width], width, height, scale),
        curve(values, width, height, scale, dots=[(0, v) for v in values]),
    ):
        assert [len(line) for line in text(rows)] == [width] * height


def test_area_rises_from_the_bottom_and_leaves_gaps() -> None:
    drawn = text(area([0.0, 0.0, 1.0, 1.0, NAN, NAN], 3, 2, Scale(0.0, 1.0)))
    assert drawn == [" ⣿ ", "⣀⣿ "]


def test_smallest_known_value_differs_from_unknown() -> None:
    assert spark([0.0, 0.0, NAN, NAN], Scale(0.0, 1.0)) == "⣀ "


def test_line_joins_steep_steps_and_not_gaps() -> None:
    drawn = text(curve([0.0, 1.0, NAN, 0.0], 2, 2, Scale(0.0, 1.0)))
    assert drawn == ["⢸ ", "⡸⢀"]


def test_line_clears_the_dots_of_its_cell() -> None:
    drawn = curve([1.0, 1.0], 1, 1, Scale(0.0, 1.0), dots=[(0, 0.0), (1, 0.0)])
    assert drawn == [[("⠉", 1)]]


def test_bins_keep_their_borders_from_tick_to_tick() -> None:
    values = [float(i // 3) for i in range(12)]
    assert binned(values, 4, 3, 12) == [0.0, 1.0, 2.0, 3.0]
    # One value more begins a bin of its own instead of shifting all others.
    assert binned([*values, 4.0], 5, 3, 13) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert math.isnan(binned([1.0], 2, 1)[0])


def test_short_run_is_a_curve_and_no_row_of_dots() -> None:
    values = resampled([(1, 1.0), (3, 3.0)], 5, 1, 3)
    assert values == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert all(math.isnan(v) for v in resampled([], 5, 1, 3))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([0.3, 1.0], 0.3, 1.0), ([5.0], 4.4, 5.6), ([], 0.0, 1.0), ([NAN], 0.0, 1.0)],
)
def test_scale_has_round_ends(values: list[float], low: float, high: float) -> None:
    scale = nice_scale(values)
    assert scale.low == pytest.approx(low, abs=0.06)
    assert scale.high == pytest.approx(high, abs=0.06)


def test_bar_reads_without_colour() -> None:
    assert bar(0.5, 4) == ("━━", "──")
    assert bar(0.375, 4) == ("━╸", "──")
    assert bar(None, 4) == ("", "····")
    assert bar(7.0, 3) == ("━━━", "")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (units.power(5572.0), "5.57 kW"),
        (units.power(126_900), "127 kW"),
        (units.power(None), "-"),
        (units.power(NAN), "-"),
        (units.size(71 * 2**30), "71 GiB"),
        (units.part(3.4 * 2**30, 80 << 30), "3.4/80 GiB"),
        (units.rate(936_000), "914 KiB/s"),
        (units.rate(0), "0 B/s"),
        (units.rate(24.7e9), "23 GiB/s"),
        (units.percent(0.414), "41%"),
        (units.number(0.41234), "0.412"),
        (units.number(2e-4, 2), "2.0e-04"),
        (units.number(1204.4), "1,204"),
        (units.number(NAN), "nan"),
        (units.number(math.inf), "inf"),
        (units.count(1_780_000), "1.78M"),
        (units.measured(0.0301), "30.1 ms"),
        (units.measured(4.106), "4.11 s"),
        (units.duration(31.2), "31 s"),
        (units.duration(600), "10 min 00 s"),
        (units.duration(17_190), "4 h 46 min"),
        (units.duration(None), "-"),
    ],
)
def test_numbers_for_people(said: str, expected: str) -> None:
    assert said == expected


@given(value=st.one_of(st.none(), numbers))
def test_no_number_is_too_odd_to_be_said(value: float | None) -> None:
    for say in (units.power, units.size, units.rate, units.percent, units.number, units.count, units.measured, units.duration, units.ago, units.offset):  # fmt: skip
        assert say(value)
