"""Differences of two curves: like with like, honest about noise."""

from __future__ import annotations

import random
import statistics

import pytest

from clusterctl.compare.windows import Curve, cut, interval, joined, middle, pairs_of


def curve(values: list[float], buckets: list[str] | None = None, first: int = 1) -> Curve:
    names = buckets or ["x"] * len(values)
    return Curve([float(first + i) for i in range(len(values))], values, names)


def test_pairs_take_out_what_both_curves_share() -> None:
    noise = [random.Random(1).gauss(0, 1) for _ in range(100)]
    shared = [random.Random(i).gauss(0, 1) for i in range(100)]
    a = curve(shared)
    b = curve([value + 0.01 for value in shared])
    (one,) = cut(a, b, pairs_of(a, b), 1, 100, 1)
    known = one.estimate()
    assert known is not None
    assert known.error is not None
    assert known.difference == pytest.approx(0.01)
    assert known.error < 1e-9
    assert statistics.stdev(noise) < 2  # the noise was there


def test_buckets_of_other_height_do_not_make_a_difference() -> None:
    mix = random.Random(2)
    names = [[mix.choice("lh") for _ in range(400)] for _ in range(2)]
    names[1] = [
        "h" if mix.random() < 0.8 else "l" for _ in range(400)
    ]  # B has more of the high one
    runs = [
        curve([(5.0 if n == "h" else 1.0) + 0.01 * mix.gauss(0, 1) for n in own], own)
        for own in names
    ]
    assert pairs_of(runs[0], runs[1]) is None
    (one,) = cut(runs[0], runs[1], None, 1, 400, 1)
    known = one.estimate()
    assert known is not None
    assert known.error is not None
    assert abs(known.difference) < 4 * known.error < 0.01
    assert statistics.fmean(runs[1].values) - statistics.fmean(runs[0].values) > 1


def test_window_without_a_common_bucket_has_no_estimate() -> None:
    a, b = curve([1.0, 2.0], ["x", "x"]), curve([1.0, 2.0], ["y", "y"])
    (one,) = cut(a, b, pairs_of(a, b), 1, 2, 1)
    assert one.estimate() is None


def test_joined_windows_are_the_longer_one() -> None:
    noise = random.Random(3)
    names = [noise.choice("xy") for _ in range(64)]
    a = curve([noise.random() for _ in range(64)], names)
    b = curve([noise.random() for _ in range(64)], names[::-1])
    four = cut(a, b, None, 1, 64, 4)
    (whole,) = joined(list(joined(four)))
    (direct,) = cut(a, b, None, 1, 64, 1)
    one, other = whole.estimate(), direct.estimate()
    assert one is not None
    assert other is not None
    assert (one.difference, one.error) == pytest.approx((other.difference, other.error))


@pytest.mark.parametrize(("count", "place"), [(5, None), (6, 1), (20, 6), (100, 40)])
def test_interval_of_the_median_has_the_ranks_of_the_sign_test(
    count: int, place: int | None
) -> None:
    """Ranks by the tables of the sign test: 20 values, the 6th and the 15th."""
    found = interval([float(i) for i in range(1, count + 1)])
    assert found == (None if place is None else (float(place), float(count + 1 - place)))


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    noise, hits = random.Random(4), 0
    for _ in range(400):
        found = middle([noise.expovariate(1.0) for _ in range(20)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.6931 <= found.high
    assert 0.92 <= hits / 400 <= 0.99
