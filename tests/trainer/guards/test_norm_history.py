"""Limits of gradient norms: never in the way of a healthy run, and below what is absurd."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.guards.curves import STAGES, Curve, simulate
from trainer.guards.norm_history import FINITE, KEPT, LEAST, NormHistory, from_octaves, octaves
from trainer.guards.skips import SkipGuard
from trainer.guards.spikes import SpikeGuard

STEPS = 7_500  # of each of four curves of seven stages: 210,000 together
CURVES = [
    Curve(),
    Curve(spread=0.02, levels=5.0),
    Curve(spread=0.7),
    Curve(spread=0.3, levels=8.0, trend=10.0),
]


def history_of(norms: list[float], z: float = 10.0, kind: str = "a") -> NormHistory:
    history = NormHistory(z)
    for norm in norms:
        history.add((kind,), norm)
    return history


def drawn(count: int, spread: float = 0.3, seed: int = 0) -> list[float]:
    return np.exp(spread * np.random.default_rng(seed).standard_normal(count)).tolist()


@given(st.floats(1e-300, 1e300))
def test_octaves_are_the_logarithm_to_within_a_tenth_and_come_back(norm: float) -> None:
    assert math.log2(norm) - 0.1 < octaves(norm) <= math.log2(norm) + 1e-9
    assert from_octaves(octaves(norm)) == pytest.approx(norm, rel=1e-9)


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_octaves_keep_the_order(one: float, other: float) -> None:
    assert (octaves(one) < octaves(other)) <= (one < other)


def judged_healthy(stage: str, curve: Curve, seed: int) -> float:
    """Share of steps that had a limit; no guard may act on any."""
    skips, spikes, judged = SkipGuard(NormHistory(10.0)), SpikeGuard(), 0
    for step, (kinds, norm) in enumerate(simulate(stage, STEPS, curve, seed), 1):
        judged += skips.begin(kinds) < FINITE
        assert skips.end(step, norm) is None
        assert spikes.end(step, kinds, {"loss": 1.0, "grad_norm": norm}) is None
    return judged / STEPS


@pytest.mark.long
@pytest.mark.parametrize("stage", ["stage1", "stage3"])
def test_no_step_of_a_healthy_stage_is_skipped_and_no_spike_is_seen(stage: str) -> None:
    assert judged_healthy(stage, Curve(), seed=0) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_210000_steps_of_seven_healthy_stages_without_a_skip_or_a_spike(
    stage: str, curve: Curve
) -> None:
    assert judged_healthy(stage, curve, seed=1) > 0.5


@pytest.mark.long
@pytest.mark.parametrize("stage", ["stage1", "stage2", "stage3"])
def test_of_a_stage_with_absurd_norms_these_are_skipped(stage: str) -> None:
    """Every 100th is 1,000 times as large. Where kinds had norms far apart the limit is above even
    this; no usual step is skipped beside them."""
    guard, judged, skipped = SkipGuard(NormHistory(10.0)), 0, 0
    for step, (kinds, norm) in enumerate(simulate(stage, 3000, Curve(spread=0.3), seed=3), 1):
        spike = 1000 if step % 100 == 0 else 1
        limited = guard.begin(kinds) < FINITE
        found = guard.end(step, norm * spike)
        if spike > 1 and limited:
            judged, skipped = judged + 1, skipped + (found is not None)
        else:
            assert found is None
    assert skipped >= 0.75 * judged > 5


def test_before_50_steps_of_a_kind_only_what_is_not_finite_is_above_its_limit() -> None:
    history = history_of(drawn(LEAST - 1))
    assert history.limit(("a",)) == FINITE
    assert not math.inf <= FINITE
    history.add(("a",), 1.0)
    assert history.limit(("a",)) < 200
    assert history.limit(("a", "new")) == FINITE
    assert history.limit(()) == FINITE


def test_the_limit_is_the_robust_score_of_the_logarithms() -> None:
    norms = drawn(KEPT, spread=0.6)
    for logarithm, within in ((np.vectorize(octaves), 1e-9), (np.log2, 0.5)):
        logs = logarithm(norms)
        median = float(np.median(logs))
        score = 1.4826 * float(np.median(abs(logs - median)))
        for z in (5.0, 10.0):
            limit = history_of(norms, z).limit(("a",))
            assert float(logarithm(limit)) == pytest.approx(median + z * score, abs=within)


def test_nearly_equal_norms_leave_room_for_8_times_as_much() -> None:
    assert history_of([1.0] * 100).limit(("a",)) == 8.0


def test_a_mixture_has_the_largest_limit_of_its_kinds() -> None:
    history = history_of([1.0] * 100)
    for _ in range(100):
        history.add(("b",), 32.0)
    assert history.limit(("a", "b")) == history.limit(("b",)) == 256.0


def test_only_the_last_200_steps_of_a_kind_count() -> None:
    history = history_of([1000.0] * 500 + [1.0] * KEPT)
    assert history.limit(("a",)) == 8.0
    assert len(history.norms["a"]) == KEPT


def test_a_few_outliers_move_the_limit_little() -> None:
    norms = drawn(KEPT)
    usual = history_of(norms).limit(("a",))
    assert history_of([*norms[:-20], *[1e6] * 20]).limit(("a",)) < 3 * usual


def test_a_norm_of_zero_is_left_out() -> None:
    history = history_of([0.0] * 100)
    assert history.norms == {}
    assert history.limit(("a",)) == FINITE


def test_a_history_that_is_loaded_has_the_same_limits_to_the_last_bit() -> None:
    history, again = history_of(drawn(300)), NormHistory(10.0)
    again.load(history.norms)
    for norm in drawn(30, seed=1):
        assert again.limit(("a",)) == history.limit(("a",))
        history.add(("a",), norm)
        again.add(("a",), norm)
    assert again.norms == history.norms


def test_a_limit_beyond_the_largest_number_is_the_largest_number() -> None:
    assert history_of([1e300] * 100, z=500.0).limit(("a",)) == FINITE
