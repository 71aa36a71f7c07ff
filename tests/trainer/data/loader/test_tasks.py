"""What is read of a manifest on disk for a microbatch, and when."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from trainer.data.__main__ import main
from trainer.data.loader.task import make_task
from trainer.data.manifest.manifest import Manifest
from trainer.data.manifest.shards import ShardReader, read_shards
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of 200,000 images in 196 row groups."""
    header = "path,text,num_frames,height,width\n"
    rows = (f"{row}.png,picture {row},1,144,256\n" for row in range(200_000))
    (tmp_path / "m.csv").write_text(header + "".join(rows))
    assert main(["shard", str(tmp_path / "m.csv"), "-q"]) == 0
    return read_shards(tmp_path / "m.shards")


@pytest.mark.long
def test_texts_of_a_microbatch_are_read_by_its_worker_each_row_group_once(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training thread makes tasks: reading 958 rows of 300,000 stalled it for seconds."""
    read: list[tuple[int, int, str]] = []
    plain = ShardReader._read_group

    def counted(self: ShardReader, *group: int | str) -> object:
        read.append(group)
        return plain(self, *group)

    monkeypatch.setattr(ShardReader, "_read_group", counted)
    for texts in (manifest.paths, manifest.texts):  # its cache calls what it was made with
        reader = texts._reader
        reader._group = counted.__get__(reader)
    plan = DataPlan(manifest, Buckets.parse({"144p": {1: (1.0, 475)}}), 1)
    plan.epoch(0)
    task = make_task(plan, 0, 0)
    assert read == []
    clips = list(task.clips)
    assert [clip.row for clip in clips] == plan.epoch(0)[0].rows.tolist()
    assert all(clip.text == f"picture {clip.row}" for clip in clips)
    changes = {name: [group for group in read if group[2] == name] for name in ("path", "text")}
    for groups in changes.values():
        runs = 1 + sum(one != other for one, other in itertools.pairwise(groups))
        assert runs == len(set(groups)) > 150
    before = len(read)
    assert task.spares[0].text.startswith("picture ")
    assert len(read) == before + 2
