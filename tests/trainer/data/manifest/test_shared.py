"""What is made once on a machine is what every rank of it would have made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.checkpoint.saving import Rank, Together, in_threads
from trainer.data.__main__ import main
from trainer.data.manifest import shared
from trainer.data.manifest.manifest import Manifest, ManifestError
from trainer.data.manifest.read import read_manifest
from trainer.data.manifest.shared import read_once
from trainer.data.manifest.texts import Packer
from trainer.data.plan.balance import Balance
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan, content_ids, plan_once

HEADER = "path,text,num_frames,height,width,fps\n"


def a_manifest(folder: Path, rows: int = 20_000) -> Path:
    path = folder / "clips.csv"
    lines = (f"v/{n}.mp4,Größe {n % 7} \U0001f3ac,{n % 300 + 1},360,640,24\n" for n in range(rows))
    path.write_text(HEADER + "".join(lines))
    return path


def on_ranks(local_ranks: list[int], work: Callable[[Any], Any]) -> list[Any]:
    """What each rank gets, or its error; ranks are threads."""
    group = Together(len(local_ranks))
    results: list[Any] = [None] * len(local_ranks)

    def one(rank: int) -> None:
        ranks = Rank(group, rank)
        ranks.local_rank = local_ranks[rank]
        try:
            results[rank] = work(ranks)
        except ManifestError as error:
            results[rank] = error

    in_threads(one, len(local_ranks))
    return results


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were read, once for each time."""
    found: list[Path] = []

    def counted(path: Path, *options: Any) -> Manifest:
        found.append(path)
        return read_manifest(path, *options)

    monkeypatch.setattr(shared, "read_manifest", counted)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("local_ranks", "times"), [([0, 1, 2, 3], 1), ([0, 1, 0, 1], 2), ([0], 1)])
def test_ranks_of_a_machine_map_what_one_has_read(tmp_path, monkeypatch, reads, local_ranks, times):
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(shared, "MEMORY", memory)
    path = a_manifest(tmp_path)
    results = on_ranks(local_ranks, lambda ranks: read_once(ranks, path))
    assert len(reads) == times
    assert list(memory.iterdir()) == []  # the names are gone, what they named is not
    whole = read_manifest(path)
    for manifest, notes in results:
        assert notes == []
        assert manifest.fingerprint == whole.fingerprint
        assert (content_ids(manifest) == content_ids(whole)).all()
        assert manifest.locate(19_999) == whole.locate(19_999)
        assert manifest.texts[7] == whole.texts[7]
        np.testing.assert_array_equal(manifest.fps, whole.fps)


def test_numbers_of_shards_are_read_once_and_texts_stay_on_disk(tmp_path, reads):
    path = a_manifest(tmp_path, 3000)
    assert main(["shard", str(path), "-q"]) == 0
    results = on_ranks([0, 1], lambda ranks: read_once(ranks, path, memory_efficient=True))
    assert len(reads) == 1
    whole = read_manifest(path)
    for manifest, notes in results:
        assert notes == []
        assert (manifest.fingerprint, manifest.root) == (whole.fingerprint, whole.root)
        np.testing.assert_array_equal(manifest.fps, whole.fps)


@pytest.mark.parametrize("room", [True, False])
def test_a_shared_plan_has_all_microbatches_of_one_that_each_rank_makes(
    tmp_path, monkeypatch, room
):
    if not room:
        monkeypatch.setattr(shared, "MEMORY", tmp_path / "nowhere")
        monkeypatch.setattr(shared.tempfile, "gettempdir", lambda: str(tmp_path / "nowhere"))
    manifest = read_manifest(a_manifest(tmp_path, 500))
    config = {"144p": {1: (1.0, 5), 51: ((0.9, 0.5), 3)}, "240p": {34: (0.7, 4)}}
    buckets = Buckets.parse(config)
    balance = Balance(4, tuple(range(len(buckets.cells))), {0: (2, 2)})
    before = content_ids(manifest)[::7]

    def a_plan() -> DataPlan:
        plan = DataPlan(manifest, buckets, seed=3, balance=balance)
        plan.leave_out(1, before)
        return plan

    def on_rank(ranks: Any) -> tuple[DataPlan, list[str], int]:
        plan, made = a_plan(), []
        plain = plan._make
        plan._make = lambda epoch: made.append(epoch) or plain(epoch)
        notes = plan_once(ranks, plan, 1, ids=True)
        assert len(plan.epoch(1)) > 30  # kept
        return plan, notes, len(made)

    alone, results = a_plan(), on_ranks([0, 1, 2], on_rank)
    assert [made for _, _, made in results] == ([1, 0, 0] if room else [1, 1, 1])
    for plan, notes, _ in results:
        assert len(notes) == (0 if room else 3)
        assert all("has its own copy of the data plan: " in note for note in notes)
        np.testing.assert_array_equal(plan.content_ids, alone.content_ids)
        for epoch in (1, 2):
            ours, theirs = alone.epoch(epoch), plan.epoch(epoch)
            assert theirs.hash == ours.hash
            assert len(theirs) == len(ours)
            for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                assert (one.cell, one.first) == (other.cell, other.first)
                np.testing.assert_array_equal(one.rows, other.rows)
                spares = theirs.substitutes(index, 4)
                np.testing.assert_array_equal(ours.substitutes(index, 4), spares)


def test_without_room_every_rank_reads_and_the_run_says_so(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(shared.shutil, "disk_usage", lambda _: type("Room", (), {"free": 1000})())
    path = a_manifest(tmp_path, 10)
    results = on_ranks([0, 1], lambda ranks: read_once(ranks, path))
    assert len(reads) == 2
    for manifest, notes in results:
        assert len(manifest) == 10
        assert len(notes) == 2
        assert "has its own copy of the manifest: " in notes[0]
        assert "B free for" in notes[0]


def test_files_that_cannot_be_mapped_are_read_by_the_rank_itself(tmp_path, monkeypatch, reads):
    def cut(offer: Any) -> Manifest:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(shared, "_map", cut)
    path = a_manifest(tmp_path, 10)
    results = on_ranks([0, 1], lambda ranks: read_once(ranks, path))
    assert [len(manifest) for manifest, _ in results] == [10, 10]
    assert "mmap length" in results[0][1][1]

    def gone(path: Path, *options: Any) -> Manifest:
        if reads[2:]:
            raise ManifestError("gone meanwhile")
        reads.append(path)
        return read_manifest(path, *options)

    monkeypatch.setattr(shared, "read_manifest", gone)
    errors = on_ranks([0, 1], lambda ranks: read_once(ranks, path))
    assert [str(error) for error in errors] == ["rank 1: gone meanwhile"] * 2
    assert all(error.on_all_ranks for error in errors)


def test_a_wrong_manifest_is_the_same_error_on_all_ranks(tmp_path):
    path = tmp_path / "clips.csv"
    path.write_text("path,text\na,b\n")
    errors = on_ranks([0, 1], lambda ranks: read_once(ranks, path))
    assert [type(error) for error in errors] == [ManifestError, ManifestError]
    assert all(error.on_all_ranks for error in errors)
    assert "no column 'num_frames'" in str(errors[1])


def test_a_file_that_a_killed_run_left_is_removed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "MEMORY", tmp_path)
    left = tmp_path / f"clusterctl-shared-{shared.os.getuid()}-abc-0"
    other = tmp_path / f"clusterctl-shared-{shared.os.getuid()}-def-0"
    for file in (left, other):
        file.touch()
    shared.os.utime(left, (0, 0))
    made = shared._new_file(10)
    assert sorted(tmp_path.iterdir()) == sorted([other, made])


@given(
    st.lists(st.lists(st.binary(max_size=6), max_size=4), max_size=4),
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.sampled_from([1, 2, -1]),
    st.booleans(),
)
def test_packed_texts_are_a_list_of_texts(batches, start, stop, step, is_arrow):
    packer, texts = Packer(), []
    for raw in batches:
        batch = [one.decode("utf-8", "surrogateescape") for one in raw]
        keep = np.array([not text.startswith("a") for text in batch], bool)
        packer.add(pa.array(raw, pa.binary()) if is_arrow else batch, keep)
        texts += [text for text in batch if not text.startswith("a")]
    packed = packer.texts()
    assert list(packed) == texts
    assert packed[start:stop:step] == texts[start:stop:step]
    for at in range(-len(texts), len(texts)):
        assert packed[at] == texts[at]
    with pytest.raises(IndexError):
        packed[len(texts)]
