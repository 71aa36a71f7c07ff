"""Clips that are kept for validation: the same ones in every run, and none of them is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.data.rows import manifest_of, random_manifest
from trainer.data.loader.task import make_task
from trainer.data.manifest.manifest import Manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.data.plan.held_out import HeldOutPlan, all_of, held_out_of
from trainer.data.plan.state import DataStateError, restore, take
from trainer.errors import ConfigError

CONFIG = {"360p": {51: (0.5, 4), 102: ((0.8, 0.5), 2)}, "240p": {51: (0.7, 5), 1: (0.9, 3)}}
NOTHING = np.empty(0, np.uint64)


def plan_of(manifest: Manifest, share: float = 0.1, seed: int = 1) -> DataPlan:
    return DataPlan(manifest, Buckets.parse(CONFIG), seed, held_out=share)


def paths(plan: DataPlan) -> set[str]:
    return {plan.manifest.paths[row] for row in plan.epoch(0).rows()}


def clips(plan: HeldOutPlan) -> dict[str, list[tuple[str, int]]]:
    """By bucket: path and first frame of each clip."""
    found: dict[str, list[tuple[str, int]]] = {}
    for index in range(len(plan.epoch(0))):
        task = make_task(plan, 0, index)
        found.setdefault(task.bucket.name, []).extend((c.path, c.start) for c in task.clips)
    return found


def rearranged(manifest: Manifest, order: list[int]) -> Manifest:
    columns = {
        name: getattr(manifest, name)[order] for name in ("num_frames", "height", "width", "fps")
    }
    texts = {name: [getattr(manifest, name)[row] for row in order] for name in ("paths", "texts")}
    return replace(manifest, **columns, **texts)


def test_no_epoch_has_a_clip_that_is_kept() -> None:
    plan = plan_of(random_manifest(3000), 0.2)
    kept = set(np.flatnonzero(plan.held_out_rows).tolist())
    assert 450 < len(kept) < 750
    for epoch in range(5):
        rows = plan.epoch(epoch).rows().tolist()
        assert not kept & set(rows)
        for index in range(0, len(plan.epoch(epoch)), 20):
            assert not kept & set(plan.epoch(epoch).substitutes(index, 16).tolist())
    held_out = held_out_of(plan, 64)
    assert set(held_out.epoch(0).rows().tolist()) <= kept


def test_every_clip_is_counted_once_by_its_reason() -> None:
    plan = plan_of(random_manifest(3000), 0.2)
    epoch = plan.epoch(0)
    left = epoch.left_out(3000, 8)
    trained = sum(len(batch.rows) for batch in list(epoch)[: len(epoch) // 8 * 8])
    assert trained + sum(left.values()) == 3000
    assert left["kept for validation"] > 100
    assert (
        plan_of(random_manifest(3000), 0.0).epoch(0).left_out(3000, 8)["kept for validation"] == 0
    )


def test_without_a_share_the_order_is_as_it_was() -> None:
    manifest = random_manifest(500)
    before = DataPlan(manifest, Buckets.parse(CONFIG), 1)
    assert plan_of(manifest, 0.0).epoch(3).hash == before.epoch(3).hash


def test_what_is_measured_depends_neither_on_the_seed_nor_on_rows_added_or_moved() -> None:
    manifest = random_manifest(2000)
    plan = plan_of(manifest)
    found = clips(held_out_of(plan, 1000))
    assert len(found) > 3
    assert clips(held_out_of(plan_of(manifest, seed=7), 1000)) == found
    order = np.random.default_rng(1).permutation(2000).tolist()
    assert clips(held_out_of(plan_of(rearranged(manifest, order)), 1000)) == found
    fewer = plan_of(rearranged(manifest, sorted(order[:1500])))
    assert paths(fewer).isdisjoint(path for one in found.values() for path, _ in one)
    grown = {(name, *clip) for name, one in found.items() for clip in one}
    before = {
        (name, *clip) for name, one in clips(held_out_of(fewer, 1000)).items() for clip in one
    }
    # whole microbatches only: a clip in a last, short one may wait for others
    assert len(before - grown) <= 5 * len(found)


def test_a_larger_share_and_more_clips_keep_those_that_were_there() -> None:
    manifest = random_manifest(4000)
    small, large = plan_of(manifest, 0.1), plan_of(manifest, 0.3)
    assert not (small.held_out_rows & ~large.held_out_rows).any()
    few, many = clips(held_out_of(small, 8)), clips(held_out_of(small, 16))
    for name, one in few.items():
        assert set(one) <= set(many[name])
        assert len(one) <= 8


def test_a_clip_that_stands_in_the_manifest_twice_is_on_one_side() -> None:
    manifest = random_manifest(1000)
    twice = rearranged(manifest, [*range(1000), *range(1000)])
    held_out = plan_of(twice).held_out_rows
    assert (held_out[:1000] == held_out[1000:]).all()


def test_another_share_is_other_data_for_a_resume() -> None:
    manifest = random_manifest(500)
    state = take(plan_of(manifest, 0.1), Cursor(0, 4), 2)
    assert restore(plan_of(manifest, 0.1), state, NOTHING).cursor == Cursor(0, 4)
    with pytest.raises(DataStateError, match=r"validation.share was 0.1, is 0.2"):
        restore(plan_of(manifest, 0.2), state, NOTHING)
    del state["held_out"]  # of a checkpoint from before
    with pytest.raises(DataStateError, match=r"validation.share was 0.0, is 0.1"):
        restore(plan_of(manifest, 0.1), state, NOTHING)


def test_a_manifest_of_its_own_shares_no_clip_with_the_training_data() -> None:
    manifest = random_manifest(600)
    first = plan_of(rearranged(manifest, list(range(500))), 0.0)
    rest = rearranged(manifest, list(range(500, 600)))
    found = clips(all_of(rest, first, 64))
    assert sum(map(len, found.values())) > 20
    with pytest.raises(ConfigError, match=r"1 clips of .* are in .*, too, first v/499.mp4"):
        all_of(rearranged(manifest, list(range(499, 600))), first, 64)


def named(paths: list[str], root: Path) -> Manifest:
    count = len(paths)
    return replace(manifest_of([200] * count, [360] * count, [640] * count, root=root), paths=paths)


def test_a_clip_is_known_by_its_file_not_by_its_spelling(tmp_path: Path) -> None:
    cats, dogs = tmp_path / "cats", tmp_path / "dogs"
    cats.mkdir()
    dogs.mkdir()
    (tmp_path / "link").symlink_to(cats)
    (dogs / "linked.mp4").symlink_to(cats / "a.mp4")
    trained = DataPlan(named(["a.mp4", f"{cats}/b.mp4"], cats), Buckets.parse(CONFIG), 1)
    spellings = ["./a.mp4", f"{cats}/a.mp4", "../cats//a.mp4", "b.mp4", f"{tmp_path}/link/a.mp4"]
    for path in [*spellings, f"{dogs}/linked.mp4"]:
        with pytest.raises(ConfigError, match=r"1 clips of .* are in .*: they would be"):
            all_of(named([path, "other.mp4"], cats), trained, 64)
    through_link = DataPlan(named(["a.mp4"], tmp_path / "link"), Buckets.parse(CONFIG), 1)
    with pytest.raises(ConfigError, match="they would be trained on"):
        all_of(named(["a.mp4"], cats), through_link, 64)
    assert all_of(named(["a.mp4", "b.mp4"], dogs), trained, 64)  # other files, spelled alike


def test_a_clip_in_two_spellings_is_on_one_side(tmp_path: Path) -> None:
    names = [f"v/{number}.mp4" for number in range(300)]
    kept = plan_of(named(names, tmp_path)).held_out_rows
    assert 10 < kept.sum() < 60
    for spelling in ("./{}", "v/../{}", str(tmp_path) + "/{}", ".//{}"):
        both = [*names, *map(spelling.format, names)]
        of_both = plan_of(named(both, tmp_path)).held_out_rows
        assert (of_both[:300] == of_both[300:]).all()
        assert of_both[:300][kept].all()  # those that were kept before still are
