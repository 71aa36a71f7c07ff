"""Who is named by its own work, within how many steps, and who never."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tests.trainer.slow_ranks.simulated import START, Training
from trainer.slow_ranks.judge import BLOCKS, FEWEST, Judge, blocks_needed, of_others, spread

HOUR = 3600  # steps of a second


@pytest.mark.long
@pytest.mark.parametrize("ranks", [4, 64])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_five_percent_are_named_within_100_steps(ranks: int, is_mixed: bool) -> None:
    for seed in range(2):
        training = Training(ranks, seed, noise=0.02, is_mixed=is_mixed, slow=(1,))
        found = training.first(START + 100)
        assert found is not None, seed
        step, (one,) = found
        assert 0 < step <= 100
        assert (one.rank, one.phase) == (1, "forward")
        assert one.share == pytest.approx(0.05, abs=0.015)


@pytest.mark.long
def test_of_two_ranks_the_slow_one_is_named() -> None:
    found = [Training(2, seed, noise=0.015, slow=(0,)).first(START + 100) for seed in range(5)]
    assert [named[0].rank for _, named in filter(None, found)] == [0] * 5


@pytest.mark.long
@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_hour_without_a_fault_names_nobody(is_mixed: bool) -> None:
    assert Training(16, 7, noise=0.04, is_mixed=is_mixed).all_named(HOUR) == set()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.04, 0.2])
@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1024])
def test_hours_without_a_fault_name_nobody(ranks: int, noise: float) -> None:
    for seed in range(1 if ranks == 1024 else 5):
        for is_mixed in (False, True):
            training = Training(ranks, seed, noise, is_mixed)
            assert training.all_named(HOUR) == set(), (seed, is_mixed)


@pytest.mark.long
def test_noise_too_large_to_tell_costs_names_and_gives_no_wrong_ones() -> None:
    assert Training(64, 1, noise=0.3).all_named(1000) == set()
    assert Training(64, 1, noise=0.3, slow=(5,), share=0.5).all_named(300) == {5}


@pytest.mark.slow
def test_slowness_that_moves_from_rank_to_rank_names_nobody() -> None:
    for moves in (20, 50):
        training = Training(16, 3, noise=0.02, moves=moves, share=0.1)
        assert training.all_named(1500) == set(), moves


def test_all_ranks_slow_is_one_common_cause() -> None:
    found = Training(16, 2, common=0.12).first(START + 100)
    assert found is not None
    _, (one,) = found
    assert (one.rank, one.phase) == (None, "data")


def test_half_of_the_ranks_slow_is_no_common_cause() -> None:
    assert Training(4, 2, noise=0.01, slow=(0, 3), share=0.3).all_named(START + 120) == {0, 3}


@pytest.mark.long
def test_a_slow_node_of_two_is_named_with_all_of_its_ranks() -> None:
    slow = tuple(range(8, 16))
    assert Training(16, 4, noise=0.02, slow=slow, share=0.1).all_named(START + 200) == set(slow)


def test_a_loader_that_is_late_at_every_fourth_step_is_named_by_its_phase() -> None:
    found = Training(16, 5, noise=0.02, slow=(3,), share=0.08, every=4, phase="data").first(START + 120)  # fmt: skip
    assert found is not None
    assert [(one.rank, one.phase) for one in found[1]] == [(3, "data")]


@pytest.mark.long
def test_ranks_that_always_differ_a_little_are_not_named_and_one_far_off_is() -> None:
    training = Training(64, 6, noise=0.01, differ=0.015)
    assert training.all_named(800) == set()
    slow = Training(64, 6, noise=0.01, differ=0.015, slow=(9,), share=0.2)
    assert 9 in slow.all_named(START + 100)


@pytest.mark.long
def test_several_microbatches_a_step_are_compared_by_their_buckets() -> None:
    training = Training(16, 8, noise=0.02, is_mixed=True, each=4, slow=(2,))
    assert training.all_named(START + 150) == {2}
    assert Training(16, 8, noise=0.02, is_mixed=True, each=4).all_named(600) == set()


def test_a_rank_that_recovers_is_named_no_more() -> None:
    sick = list(Training(8, 9, noise=0.02, slow=(1,), share=0.2).steps(START + 100))
    well = list(Training(8, 9, noise=0.02).steps(START + 100))
    judge = Judge(8)
    for seconds, cells in [*sick, *well]:
        judge.add(seconds, cells)
    assert judge.named == ()


def test_of_others_is_the_median_of_the_others() -> None:
    draw = np.random.default_rng(1)
    for count in (2, 3, 4, 7, 10):
        values = draw.integers(0, 5, size=(count, 3)).astype(float)  # with ties
        found = of_others(values)
        for (row, column), _ in np.ndenumerate(values):
            others = np.delete(values[:, column], row).tolist()
            assert found[row, column] == statistics.median(others)
    assert of_others(np.ones((1, 2))).tolist() == [[0.0, 0.0]]


def test_spread_does_not_see_slow_ranks() -> None:
    draw = np.random.default_rng(2)
    values = draw.standard_normal(4001)
    assert spread(values) == pytest.approx(1.0, abs=0.1)
    values[:1500] = 50.0
    assert spread(values) < 2.0


def test_the_chance_of_a_wrong_name_decides_how_many_blocks_are_needed() -> None:
    assert blocks_needed(0.01, 1e-9) == FEWEST
    assert blocks_needed(0.2, 1e-9) == BLOCKS - 1
    assert blocks_needed(0.25, 1e-9) == BLOCKS
    assert blocks_needed(0.5, 1e-7) > BLOCKS
    for need in range(FEWEST, BLOCKS + 1):
        # drawn: a share of windows as large as its bound
        chance = 0.9
        drawn = np.random.default_rng(need).binomial(BLOCKS, chance, size=100_000) >= need
        bound = float(drawn.mean())
        assert blocks_needed(chance, bound * 1.05) <= need
