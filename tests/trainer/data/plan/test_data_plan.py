"""The order of epochs and resuming it: nothing repeated, nothing missed, every mismatch named."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.rows import random_manifest
from trainer.data.plan import state as data_state
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan, uses
from trainer.data.plan.state import restore

CONFIG = {"360p": {51: (1.0, 4), 102: ((0.8, 0.5), 2)}, "240p": {51: (0.7, 5), 1: (0.9, 3)}}

NOTHING = np.empty(0, np.uint64)


def plan_of(rows: int = 300, seed: int = 1, config: dict = CONFIG, **options) -> DataPlan:
    return DataPlan(random_manifest(rows), Buckets.parse(config), seed, **options)


def identity(batches) -> list[tuple[int, tuple[int, ...]]]:
    return [(batch.cell, tuple(batch.rows.tolist())) for batch in batches]


def test_epoch_is_a_pure_function_of_its_inputs():
    one, two = plan_of(), plan_of()
    two.epoch(5)  # asking for another epoch first changes nothing
    assert identity(one.epoch(2)) == identity(two.epoch(2))
    assert one.epoch(2).hash == two.epoch(2).hash
    hashes = {one.epoch(0).hash, one.epoch(1).hash, plan_of(seed=2).epoch(0).hash}
    assert len(hashes | {plan_of(rows=299).epoch(0).hash}) == 4


def test_each_clip_of_a_bucket_is_in_at_most_one_microbatch_and_only_tails_are_left_out():
    plan = plan_of()
    cells = plan.buckets.assign(plan.manifest, 1, 0)
    epoch = plan.epoch(0)
    rows = np.concatenate([batch.rows for batch in epoch])
    assert len(rows) == len(set(rows.tolist()))
    for batch in epoch:
        assert (cells[batch.rows] == batch.cell).all()
        assert len(batch.rows) == plan.buckets.cells[batch.cell].batch_size
    for use in uses(epoch, plan.buckets):
        assert use.left_out == use.clips % use.bucket.batch_size
        assert use.clips == use.microbatches * use.bucket.batch_size + use.left_out


@pytest.mark.parametrize("each", [1, 2, 7, 64])
def test_every_clip_that_an_epoch_does_without_is_counted_by_its_reason(each):
    plan = plan_of()
    epoch = plan.epoch(0)
    left = epoch.left_out(len(plan.manifest), each)
    steps = len(epoch) // each
    trained = sum(len(batch.rows) for batch in list(epoch)[: steps * each])
    assert trained + sum(left.values()) == len(plan.manifest)
    cells = plan.buckets.assign(plan.manifest, 1, 0)
    assert left["in no bucket of this epoch"] == (cells < 0).sum() > 0
    assert (
        left["too few for a microbatch"]
        == sum(use.left_out for use in uses(epoch, plan.buckets))
        > 0
    )
    assert bool(left["too few for a step"]) == bool(len(epoch) % each)


def test_clips_that_a_resume_on_more_ranks_still_trains_are_not_counted_as_left_out():
    plan = plan_of()
    epoch = plan.epoch(0)
    consumed = len(epoch) % 2 + 3  # by one rank; two trained all the others
    assert (len(epoch) - consumed) % 2 == 1
    left = epoch.left_out(len(plan.manifest), 2, consumed)["too few for a step"]
    assert left == len(epoch[len(epoch) - 1].rows)
    assert epoch.left_out(len(plan.manifest), 2, consumed + 1)["too few for a step"] == 0


def test_microbatches_of_one_bucket_are_spread_over_the_epoch():
    order = [batch.cell for batch in plan_of(3000).epoch(0)]
    changes = np.mean(np.diff(order) != 0)
    shares = np.bincount(order) / len(order)
    assert changes == pytest.approx(1 - (shares**2).sum(), abs=0.1)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 16), st.integers(0, 12)), min_size=1, max_size=8),
    st.integers(1, 16),
)
def test_any_sequence_of_stops_and_world_sizes_is_exactly_once(epoch, runs, last_world):
    """Each run is (ranks, steps before it is stopped); the last one goes to the end of the epoch."""
    plan = plan_of(200)
    cursor = Cursor(epoch, 0)
    seen: list[int] = []
    state = json.dumps(data_state.take(plan, cursor, runs[0][0]))
    for world, wanted in [*runs, (last_world, 10**6)]:
        resumed = plan_of(200)  # a new process
        cursor = restore(resumed, json.loads(state), NOTHING).cursor
        steps = min(wanted, resumed.steps(cursor, world))
        for _ in range(steps):
            seen += range(cursor.consumed, cursor.consumed + world)  # rank r takes the r-th
            cursor = cursor.after_step(world)
        state = json.dumps(data_state.take(resumed, cursor, world))
    total = len(plan.epoch(epoch))
    assert seen == list(range(len(seen)))
    assert total - len(seen) < last_world  # only the tail that does not fill a step


def test_resume_at_every_step_of_three_epochs_equals_the_uninterrupted_run():
    plan, world = plan_of(120), 3

    def run(plan: DataPlan, cursor: Cursor) -> list[tuple[int, int]]:
        seen = []
        while cursor.epoch < 3:
            for _ in range(plan.steps(cursor, world)):
                seen += [(cursor.epoch, cursor.consumed + rank) for rank in range(world)]
                cursor = cursor.after_step(world)
            cursor = cursor.next_epoch()
        return seen

    whole = run(plan, Cursor())
    cursor, done = Cursor(), 0
    while cursor.epoch < 3:
        for _ in range(plan.steps(cursor, world) + 1):  # also after the last step of the epoch
            again = plan_of(120)
            state = data_state.take(plan, cursor, world)
            assert run(again, restore(again, state, NOTHING).cursor) == whole[done:]
            if plan.steps(cursor, world) == 0:
                break
            cursor, done = cursor.after_step(world), done + world
        cursor = cursor.next_epoch()
    assert done == len(whole)


def test_substitutes_follow_the_microbatch_and_come_round_to_its_own_rows():
    plan = plan_of()
    epoch = plan.epoch(0)
    index = next(i for i, batch in enumerate(epoch) if batch.first == 0)
    batch = epoch[index]
    order = epoch.cell_orders[batch.cell].tolist()
    found = epoch.substitutes(index, 10_000).tolist()
    assert found == order[len(batch.rows) :] + order[: len(batch.rows)]
    assert epoch.substitutes(index, 2).tolist() == found[:2]
