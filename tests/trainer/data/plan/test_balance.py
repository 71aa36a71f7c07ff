"""Steps of alike microbatches: a permutation, bounded, and it does what it is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.plan.balance import Balance, balanced, classes, idle
from trainer.errors import ConfigError


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=120),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_nothing_is_repeated_or_missed_and_nothing_moves_far(costs, ranks, each, window, epoch):
    group = ranks * each
    order = balanced(np.array(costs, np.int64), ranks, each, window, 7, epoch)
    assert sorted(order.tolist()) == list(range(len(costs)))
    tail = len(costs) - len(costs) % group
    assert order[tail:].tolist() == list(range(tail, len(costs)))
    moved = np.abs(order - np.arange(len(costs)))
    assert (moved < 3 * group * window).all()


def some_epoch(count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    cells = rng.choice(12, count, p=rng.dirichlet(np.ones(12)))
    return cells, 10.0 * 1.25 ** np.arange(12)


@pytest.mark.parametrize(
    ("group", "window", "share"), [(8, 8, 0.02), (16, 16, 0.01), (64, 16, 0.01)]
)
def test_ranks_of_a_step_wait_little(group, window, share):
    cells, costs = some_epoch()
    order = Balance(window, classes(costs), {0: (group, 1)}).order(cells, 1, 0)
    random, sorted_ = (idle(cells[at], costs[cells[at]], group) for at in (slice(None), order))
    assert random.share > 0.2
    assert sorted_.share < share
    assert sorted_.buckets_a_step < 1.3 < random.buckets_a_step
    assert sorted_.steps == random.steps


def test_steps_of_an_epoch_are_not_in_order_of_cost_and_no_rank_gets_the_costly_ones():
    cells, costs = some_epoch()
    order = Balance(8, classes(costs), {0: (4, 1)}).order(cells, 1, 0)
    table = costs[cells[order]].reshape(-1, 4)
    steps = table.max(axis=1)
    assert abs(np.corrcoef(np.arange(len(steps)), steps)[0, 1]) < 0.05
    mixed = table[table.min(axis=1) < table.max(axis=1)]
    assert len(set(mixed.argmax(axis=1).tolist())) == 4


def test_order_is_a_function_of_its_inputs():
    cells, costs = some_epoch(2000)
    make = Balance(8, classes(costs), {0: (4, 1), 3: (6, 1)})
    assert (make.order(cells, 1, 0) == make.order(cells, 1, 0)).all()
    assert (make.order(cells, 1, 0) != make.order(cells, 2, 0)).any()
    assert (make.order(cells, 1, 0) != make.order(cells, 1, 1)).any()
    assert [make.step(epoch)[0] for epoch in (0, 2, 3, 9)] == [4, 4, 6, 6]


def test_costs_of_the_ratios_of_one_bucket_count_as_alike():
    near, far = classes([100.0, 101.0]), classes([100.0, 200.0])
    assert near[0] == near[1]
    assert far[0] != far[1]
    assert classes([0.0]) == (0,)


@pytest.mark.parametrize("window", [-1, 65])
def test_windows_out_of_range_are_refused_by_name(window):
    with pytest.raises(ConfigError, match=r"dataset\.balance_window"):
        Balance(window, (1,), {0: (2, 1)})


def test_ranks_get_alike_sums_of_unlike_microbatches():
    cells, costs = some_epoch()
    order = Balance(1, classes(costs), {0: (16, 8)}).order(cells, 1, 0)
    random, shared = (idle(cells[at], costs[cells[at]], 16, 8) for at in (slice(None), order))
    assert random.share > 0.15
    assert shared.share < 0.03
    assert shared.steps == random.steps
    table = cells[order][: shared.steps * 128].reshape(-1, 128)
    mix = np.mean([len(set(step)) for step in table.tolist()])
    assert mix > 5  # a step keeps its mix of buckets, unlike with a wide window
