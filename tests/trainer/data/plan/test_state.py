"""What a checkpoint keeps of the data: every mismatch is named, and remap repeats and misses nothing."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.data.plan.test_data_plan import CONFIG, NOTHING, plan_of
from tests.trainer.data.rows import manifest_of, random_manifest
from trainer.data.plan.balance import Balance, classes
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan, content_ids
from trainer.data.plan.state import DataStateError, balance_before, restore, seen, take


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 240}, r"300 rows then, 240 now; the first 240 are equal"),
        ({"rows": 400}, r"300 rows then, 400 now; the first difference is in row 301"),
        ({"seed": 9}, "seed was 1, is 9"),
        ({"frame_interval": 2}, "frame_interval was 1, is 2"),
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
    state = take(DataPlan(first, Buckets.parse(CONFIG), 1), Cursor(2, 7), 4)
    options.pop("rows")
    buckets = Buckets.parse(options.pop("config", CONFIG))
    plan = DataPlan(manifest, buckets, options.pop("seed", 1), **options)
    with pytest.raises(DataStateError, match=message) as caught:
        restore(plan, state, NOTHING)
    assert "reset" in caught.value.hint
    assert "force" in caught.value.hint
    assert "remap" in caught.value.hint
    assert restore(plan, state, NOTHING, "reset").cursor == Cursor(3, 0)
    assert restore(plan, state, NOTHING, "force").cursor == Cursor(2, 7)
    assert restore(plan, state, NOTHING, "remap").cursor == Cursor(2, 0)


@pytest.mark.long
def test_first_differing_row_is_named_among_many():
    rows = 100_000
    one = manifest_of([60] * rows, [360] * rows, [640] * rows)
    frames = np.full(rows, 60)
    frames[77_777] = 61
    two = manifest_of(frames, [360] * rows, [640] * rows)
    buckets = Buckets.parse({"360p": {51: (1.0, 4)}})
    state = take(DataPlan(one, buckets, 1), Cursor(0, 1), 1)
    assert len(json.dumps(state)) < 10_000
    with pytest.raises(DataStateError, match=r"rows 77,617 to 77,812 \(v/77616.mp4"):
        restore(DataPlan(two, buckets, 1), state, NOTHING)


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
    assert restore(moved, take(plan, Cursor(1, 12), 12), NOTHING).cursor == Cursor(1, 12)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    st.sampled_from(sorted(take(plan_of(40), Cursor(), 1))),
)
def test_damaged_state_is_refused_by_name(value, key):
    plan = plan_of(40)
    state = {**take(plan, Cursor(), 1), key: value}
    with contextlib.suppress(DataStateError):  # any other error fails the test
        assert restore(plan, state, NOTHING).cursor.epoch >= 0
    with pytest.raises(DataStateError):
        restore(plan, value if not isinstance(value, dict) else {}, NOTHING)


ALL = {"144p": {51: (1.0, 1), 1: (1.0, 1)}}  # every clip has a place, whatever it draws


def whole_plan(rows, seed: int = 1) -> DataPlan:
    """Of a manifest with these of 400 clips, in this order."""
    rows, every = np.asarray(rows), random_manifest(400)
    manifest = manifest_of(every.num_frames[rows], every.height[rows], every.width[rows])
    manifest.paths[:] = [f"v/{row}.mp4" for row in rows]
    return DataPlan(manifest, Buckets.parse(ALL), seed)


def paths_of(plan: DataPlan, cursor: Cursor, upto: int | None = None) -> list[str]:
    batches = list(plan.epoch(cursor.epoch))[cursor.consumed : upto]
    return [plan.manifest.paths[row] for batch in batches for row in batch.rows.tolist()]


def test_remap_goes_on_with_the_clips_that_this_epoch_has_not_had():
    before = whole_plan(range(300))
    cursor = Cursor(2, 40)
    done = paths_of(before, Cursor(2, 0), 40)
    state, ids = json.loads(json.dumps(take(before, cursor, 4))), seen(before, cursor)
    # 50 clips went, 60 came, and the rest stand in another order
    kept = np.random.default_rng(0).permutation(np.arange(50, 360))
    after = whole_plan(kept)
    with pytest.raises(DataStateError, match="300 rows then, 310 now"):
        restore(after, state, ids)
    restored = restore(after, state, ids, "remap")
    gone = sum(int(path[2:-4]) < 50 for path in done)
    assert f"without the {len(done) - gone} clips already seen ({gone} more" in restored.note
    after.leave_out(restored.cursor.epoch, restored.left_out)
    rest = paths_of(after, restored.cursor)
    assert not set(rest) & set(done)
    wanted = {f"v/{row}.mp4" for row in kept} - set(done)
    fit = set(paths_of(whole_plan(kept), Cursor(2, 0)))
    assert set(rest) == wanted & fit
    assert len(rest) == len(set(rest))

    # A stop in the middle of what is left, and on from there with nothing special said.
    here = Cursor(2, 5)
    again = whole_plan(kept)
    second = restore(again, take(after, here, 4), seen(after, here))
    again.leave_out(second.cursor.epoch, second.left_out)
    assert second.cursor == here
    assert paths_of(again, here) == paths_of(after, here)
    # The epoch after it has every clip again.
    assert set(paths_of(again, Cursor(3, 0))) == set(paths_of(whole_plan(kept), Cursor(3, 0)))


def test_seen_ids_that_do_not_belong_to_the_state_are_refused():
    plan = whole_plan(range(100))
    plan.leave_out(0, plan.content_ids[:30])
    state, ids = take(plan, Cursor(0, 2), 1), seen(plan, Cursor(0, 2))
    with pytest.raises(DataStateError, match="damaged: the clips that it leaves out"):
        restore(whole_plan(range(100)), state, ids[1:])


def test_clip_keeps_its_id_when_rows_around_it_change():
    manifest = random_manifest(50)
    manifest.paths[10] = manifest.paths[20] = "v/same.mp4"
    ids = content_ids(manifest)
    assert len(set(ids.tolist())) == 50
    kept = [row for row in range(50) if row % 3]
    fewer = random_manifest(50)
    fewer.paths[:] = [manifest.paths[row] for row in kept] + ["v/new.mp4"] * (50 - len(kept))
    same = content_ids(fewer)[: len(kept)]
    assert same.tolist() == ids[kept].tolist()


def balanced_plan(balance: Balance | None) -> DataPlan:
    return DataPlan(random_manifest(400), Buckets.parse(CONFIG), 1, balance=balance)


def test_balance_goes_on_as_it_was_and_takes_the_new_number_of_ranks_with_the_next_epoch():
    buckets = Buckets.parse(CONFIG)
    costs = classes([cell.frames * cell.height * cell.width for cell in buckets.cells])
    first = balanced_plan(Balance(4, costs, {0: (3, 1)}))
    cursor = Cursor(1, 9)
    state = json.loads(json.dumps(take(first, cursor, 3)))
    kept = balance_before(state, buckets, 4, 5, 1)
    assert kept is not None
    assert kept.steps == {0: (3, 1), 2: (5, 1)}
    second = balanced_plan(kept)
    assert restore(second, state, NOTHING).cursor == cursor
    assert second.epoch(1).hash == first.epoch(1).hash
    assert second.epoch(2).hash != first.epoch(2).hash
    assert balance_before(state, buckets, 8, 5, 1) is None
    with pytest.raises(DataStateError, match=r"dataset\.balance_window was 4, is 0"):
        restore(balanced_plan(None), state, NOTHING)
    with pytest.raises(
        DataStateError,
        match="epoch 1 were made of 3 ranks with 1 microbatches each, now of 7 ranks",
    ):
        restore(balanced_plan(Balance(4, costs, {0: (7, 1)})), state, NOTHING)
    at_start = take(first, Cursor(1, 0), 3)
    assert balance_before(at_start, buckets, 4, 5, 1).steps == {0: (3, 1), 1: (5, 1)}
