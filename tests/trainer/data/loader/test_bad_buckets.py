"""Buckets of which no clip can be read, and clips that are bad in every epoch: training goes on."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.data.clips import write_clip
from tests.trainer.data.loader.test_loader import FAST, damage, plan_of
from trainer.data import digits
from trainer.data.loader.build_loader import build_loader
from trainer.data.loader.microbatch import Batch, assemble
from trainer.data.loader.task import Task, make_task
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.data.video.decode import Decoder, Reply
from trainer.errors import TooManyBadSamples

TWO = {"16px": {4: (1.0, 2), 8: ((1.0, 0.5), 2)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "set"
    digits.make(out, clips=24, seed=3)
    return out


@pytest.fixture
def plan(folder: Path, tmp_path: Path) -> DataPlan:
    """Of a copy that a test may damage."""
    return plan_of(Path(shutil.copytree(folder, tmp_path / "set")), TWO)


def all_batches(plan: DataPlan, world: int, known: dict[str, str] | None = None) -> list[Batch]:
    """Of epoch 0, in the order of the plan."""
    found = {}
    for rank in range(world):
        loader = build_loader(plan, Cursor(), rank, world, 1, FAST)
        loader.known_bad.update(known or {})
        found |= {batch.microbatch[1]: batch for batch in loader}
        loader.close()
    return [found[index] for index in sorted(found)]


@pytest.mark.long
def test_bucket_without_a_clip_takes_those_of_the_nearest_one_on_any_number_of_ranks(plan):
    epoch = plan.epoch(0)
    bad_cell = int(epoch.cells[0])
    gone = epoch.cell_orders[bad_cell].tolist()
    for row in gone:
        damage(plan, row, "empty")
    alone, shared = all_batches(plan, 1), all_batches(plan, 2)
    assert len(alone) == len(epoch)
    assert len(shared) >= len(alone) - 1
    assert {int(cell) for cell in epoch.cells} == {0, 1}
    for index, batch in enumerate(alone):
        is_bad = int(epoch.cells[index]) == bad_cell
        bucket = plan.buckets.cells[1 - bad_cell if is_bad else int(epoch.cells[index])]
        assert batch.bucket == bucket.name
        assert batch.video.shape == (2, 3, bucket.frames, 16, 16)
        assert batch.microbatch == (0, index)
        assert not set(batch.rows) & set(gone)
        assert bool(batch.bad) == is_bad
    for one, other in zip(alone, shared, strict=False):
        assert (one.rows, one.bucket, one.bad) == (other.rows, other.bucket, other.bad)
        assert torch.equal(one.video, other.video)


@pytest.mark.long
def test_clip_that_is_left_alone_in_its_bucket_fills_the_microbatch(plan):
    epoch = plan.epoch(0)
    cell = int(epoch.cells[0])
    good, *gone = epoch.cell_orders[cell].tolist()
    for row in gone:
        damage(plan, row, "noise")
    batch = next(b for b in all_batches(plan, 1) if b.microbatch[1] == 0)
    assert batch.rows == [good, good]
    assert batch.bucket == plan.buckets.cells[cell].name
    assert torch.equal(batch.video[0], batch.video[1])


@pytest.mark.long
def test_no_clip_of_any_bucket_ends_with_the_list(plan):
    for row in range(len(plan.manifest)):
        damage(plan, row, "missing")
    with pytest.raises(TooManyBadSamples, match="or of the 1 others is left") as failed:
        all_batches(plan, 1)
    paths = [path for _, path, _ in failed.value.bad]
    assert len(paths) == len(set(paths))  # each once, also one that is its own spare


@pytest.mark.long
def test_clip_that_is_known_to_be_bad_is_replaced_without_being_tried(plan):
    rows = plan.epoch(0)[0].rows.tolist()
    path = plan.manifest.locate(rows[0])
    damage(plan, rows[0], "noise")
    tried, known = (all_batches(plan, 1, given) for given in (None, {path: "no answer"}))
    assert [batch.rows for batch in tried] == [batch.rows for batch in known]
    assert list(tried[0].failures.lasting) == [path]
    assert [clip[1:] for clip in known[0].bad] == [(path, "not tried again: no answer")]
    assert not known[0].failures.lasting


@pytest.mark.long
def test_clip_whose_folder_is_not_on_this_node_is_tried_again(plan):
    """Another node may have it, and all ranks share what is known."""
    rows = plan.epoch(0)[0].rows.tolist()
    path = Path(plan.manifest.locate(rows[0]))
    moved = path.parent / "of its own" / path.name
    paths = [plan.manifest.locate(row) for row in range(len(plan.manifest))]
    paths[rows[0]] = str(moved)
    plan.manifest = replace(plan.manifest, paths=paths)
    batch = all_batches(plan, 1)[0]
    assert [clip.reason for clip in batch.bad] == ["No such file or directory"]
    assert not batch.failures.lasting
    moved.parent.mkdir()
    assert list(all_batches(plan, 1)[0].failures.lasting) == [str(moved)]  # the file alone


@pytest.mark.long
def test_windows_of_a_clip_that_was_cut_are_moved_to_what_is_there(tmp_path):
    """As upstream does; else the clip would be lost to the run."""
    plan = plan_of_one(tmp_path, frames=72)
    path = Path(plan.manifest.locate(0))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])  # a transport stream that was cut
    decoder, good, bad = Decoder(), 0, 0
    for epoch in range(12):
        batch = assemble(make_task(plan, epoch, 0), decoder, 60)
        assert not batch.failures.lasting
        good += not batch.bad
        bad += "a.ts" in str(batch.bad)
    decoder.close()
    assert (good, bad) == (12, 0)


def plan_of_one(folder: Path, frames: int) -> DataPlan:
    """Beside it one that can always be read."""
    for name in ("a.ts", "b.mp4"):
        write_clip(folder / name, frames, g="12")
    rows = "".join(f"{name},a line,{frames},48,64\n" for name in ("a.ts", "b.mp4"))
    row = f"path,text,num_frames,height,width\n{rows}"
    (folder / "digits.csv").write_text(row)
    return plan_of(folder, {"16px": {8: (1.0, 2)}})


class Damaged:
    """Stands in for the decoder where only the order of tries matters."""

    def __init__(self, bad: set[str]) -> None:
        self.bad, self.tried = bad, list[str]()

    def start(self) -> None:
        pass

    def decode(self, wanted: Any, *_: Any) -> tuple[None, list[Reply]]:
        self.tried += [path for path, _ in wanted]
        return None, [Reply("noise" if path in self.bad else "", fps=8.0) for path, _ in wanted]


@pytest.mark.long
def test_what_is_known_of_bad_clips_changes_no_replacement(folder: Path) -> None:
    """Ranks learn of a bad clip at different batches, so what they know must not matter."""
    plan, draw = plan_of(folder, {"16px": {4: (1.0, 4), 8: ((1.0, 0.5), 3)}}), random.Random(1)
    paths = [plan.manifest.locate(row) for row in range(len(plan.manifest))]
    filled = replaced = 0
    for _ in range(200):
        bad = {path for path in paths if draw.random() < draw.choice((0.2, 0.6, 0.95))}
        known = {path: "noise" for path in bad if draw.random() < 0.5}
        task = make_task(plan, draw.randrange(9), 0)
        plain, knowing = Damaged(bad), Damaged(bad)
        first = of(task, plain, {})
        assert of(task, knowing, known) == first
        assert not set(known) & set(knowing.tried)
        tried_bad = [path for path in plain.tried if path in bad]
        assert len(tried_bad) == len(set(tried_bad))
        if first is not None:
            rows, told = first
            assert not {paths[row] for row in rows} & bad
            assert len(set(told)) == len(told)
            replaced += bool(told)
            filled += len(set(rows)) < len(rows)
    assert min(filled, replaced) > 10


def of(task: Task, decoder: Any, known: dict[str, str]) -> tuple[list[int], list[int]] | None:
    try:
        batch = assemble(task, decoder, 60.0, known)
    except TooManyBadSamples:
        return None
    return batch.rows, [clip.row for clip in batch.bad]
