"""The order of epochs and resuming it: nothing repeated, nothing missed, every mismatch named."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.rows import manifest_of, random_manifest
from trainer.data.buckets import Buckets
from trainer.data.plan import Cursor, DataPlan, DataStateError, uses

CONFIG = {"360p": {51: (1.0, 4), 102: ((0.8, 0.5), 2)}, "240p": {51: (0.7, 5), 1: (0.9, 3)}}


def plan_of(rows: int = 300, seed: int = 1, config: dict = CONFIG, **options) -> DataPlan:
    return DataPlan(random_manifest(rows), Buckets.parse(config), seed, **options)


def identity(batches) -> list[tuple[int, tuple[int, ...]]]:
    return [(batch.cell, tuple(batch.rows.tolist())) for batch in batches]


def test_epoch_is_a_pure_function_of_its_inputs():
    one, two = plan_of(), plan_of()
    two.epoch(5)  # asking for another epoch first changes nothing
    assert identity(one.epoch(2).microbatches) == identity(two.epoch(2).microbatches)
    assert one.epoch(2).hash == two.epoch(2).hash
    hashes = {one.epoch(0).hash, one.epoch(1).hash, plan_of(seed=2).epoch(0).hash}
    assert len(hashes | {plan_of(rows=299).epoch(0).hash}) == 4


def test_each_clip_of_a_bucket_is_in_at_most_one_microbatch_and_only_tails_are_left_out():
    plan = plan_of()
    cells = plan.buckets.assign(plan.manifest, 1, 0)
    epoch = plan.epoch(0)
    rows = np.concatenate([batch.rows for batch in epoch.microbatches])
    assert len(rows) == len(set(rows.tolist()))
    for batch in epoch.microbatches:
        assert (cells[batch.rows] == batch.cell).all()
        assert len(batch.rows) == plan.buckets.cells[batch.cell].batch_size
    for use in uses(epoch, plan.buckets):
        assert use.left_out == use.clips % use.bucket.batch_size
        assert use.clips == use.microbatches * use.bucket.batch_size + use.left_out
    kept = plan_of(drop_last=False).epoch(0)
    assert sum(len(batch.rows) for batch in kept.microbatches) == (cells >= 0).sum()


def test_microbatches_of_one_bucket_are_spread_over_the_epoch():
    order = [batch.cell for batch in plan_of(3000).epoch(0).microbatches]
    changes = np.mean(np.diff(order) != 0)
    shares = np.bincount(order) / len(order)
    assert changes == pytest.approx(1 - (shares**2).sum(), abs=0.1)


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
    state = json.dumps(plan.state(cursor, runs[0][0]))
    for world, wanted in [*runs, (last_world, 10**6)]:
        resumed = plan_of(200)  # a new process
        cursor = resumed.restore(json.loads(state))
        steps = min(wanted, resumed.steps(cursor, world))
        for _ in range(steps):
            seen += range(cursor.consumed, cursor.consumed + world)  # rank r takes the r-th
            cursor = cursor.after_step(world)
        state = json.dumps(resumed.state(cursor, world))
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
            assert run(again, again.restore(plan.state(cursor, world))) == whole[done:]
            if plan.steps(cursor, world) == 0:
                break
            cursor, done = cursor.after_step(world), done + world
        cursor = cursor.next_epoch()
    assert done == len(whole)


def test_substitutes_follow_the_microbatch_and_come_round_to_its_own_rows():
    plan = plan_of()
    epoch = plan.epoch(0)
    index = next(i for i, batch in enumerate(epoch.microbatches) if batch.first == 0)
    batch = epoch.microbatches[index]
    order = epoch.cell_orders[batch.cell].tolist()
    found = epoch.substitutes(index, 10_000).tolist()
    assert found == order[len(batch.rows) :] + order[: len(batch.rows)]
    assert epoch.substitutes(index, 2).tolist() == found[:2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 240}, r"300 rows then, 240 now; the first 240 are equal"),
        ({"rows": 400}, r"300 rows then, 400 now; the first difference is in row 301"),
        ({"seed": 9}, "seed was 1, is 9"),
        ({"frame_interval": 2}, "frame_interval was 1, is 2"),
        ({"drop_last": False}, "drop_last was True, is False"),
        (
            {"config": {**CONFIG, "360p": {51: (1.0, 3), 102: ((0.8, 0.5), 2)}}},
            r"bucket_config\['360p'\]\[51\] was \(1.0, 4\), is \(1.0, 3\)",
        ),
        (
            {"config": {"360p": CONFIG["360p"]}},
            r"bucket_config\['240p'\]\[51\] was \(0.7, 5\), is absent",
        ),
    ],
)
def test_mismatch_fails_with_the_first_difference_and_the_ways_on(change, message):
    options = {"rows": 300, **change}
    grown = random_manifest(400)
    manifest = manifest_of(
        grown.num_frames[: options["rows"]],
        grown.height[: options["rows"]],
        grown.width[: options["rows"]],
    )
    first = manifest_of(grown.num_frames[:300], grown.height[:300], grown.width[:300])
    state = DataPlan(first, Buckets.parse(CONFIG), 1).state(Cursor(2, 7), 4)
    options.pop("rows")
    buckets = Buckets.parse(options.pop("config", CONFIG))
    plan = DataPlan(manifest, buckets, options.pop("seed", 1), **options)
    with pytest.raises(DataStateError, match=message) as caught:
        plan.restore(state)
    assert "reset" in caught.value.hint
    assert "force" in caught.value.hint
    assert plan.restore(state, "reset") == Cursor(3, 0)
    assert plan.restore(state, "force") == Cursor(2, 7)
    with pytest.raises(DataStateError, match="remap is not built yet"):
        plan.restore(state, "remap")


def test_first_differing_row_is_named_among_many():
    rows = 100_000
    one = manifest_of([60] * rows, [360] * rows, [640] * rows)
    frames = np.full(rows, 60)
    frames[77_777] = 61
    two = manifest_of(frames, [360] * rows, [640] * rows)
    buckets = Buckets.parse({"360p": {51: (1.0, 4)}})
    state = DataPlan(one, buckets, 1).state(Cursor(), 1)
    assert len(json.dumps(state)) < 10_000
    with pytest.raises(DataStateError, match=r"rows 77,617 to 77,812 \(v/77616.mp4"):
        DataPlan(two, buckets, 1).restore(state)


def test_world_size_and_place_of_the_files_may_change():
    plan = plan_of()
    moved = DataPlan(
        manifest_of(
            plan.manifest.num_frames,
            plan.manifest.height,
            plan.manifest.width,
            root=Path("/elsewhere"),
        ),
        plan.buckets,
        1,
    )
    assert moved.restore(plan.state(Cursor(1, 12), 12)) == Cursor(1, 12)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    st.sampled_from(sorted(plan_of(40).state(Cursor(), 1))),
)
def test_damaged_state_is_refused_by_name(value, key):
    plan = plan_of(40)
    state = {**plan.state(Cursor(), 1), key: value}
    with contextlib.suppress(DataStateError):  # any other error fails the test
        assert plan.restore(state).epoch >= 0
    with pytest.raises(DataStateError):
        plan.restore(value if not isinstance(value, dict) else {})
