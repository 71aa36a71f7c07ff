"""Shards: the same data set with its texts on disk; numbers alone; statistics and their picture."""

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.tables import write_table
from trainer.data.__main__ import main
from trainer.data.manifest import shards
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.read import read_manifest
from trainer.data.tools import shard


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """250 rows in three shards, in row groups of 16."""
    monkeypatch.setattr(shard, "GROUP_ROWS", 16)
    write_table(tmp_path / "a.csv", 250)
    assert main(["shard", str(tmp_path / "a.csv"), "--rows", "100", "-q"]) == 0
    return tmp_path / "a.shards"


def test_shards_are_the_same_data_set_as_their_source(folder):
    whole, parts = read_manifest(folder.parent / "a.csv"), read_manifest(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "00001.parquet", "00002.parquet", "00003.parquet", "index.json",
    ]  # fmt: skip
    assert parts.fingerprint == whole.fingerprint
    assert parts.marks(7) == whole.marks(7)
    assert parts.root == whole.root
    for name in ("num_frames", "height", "width"):
        assert getattr(parts, name).tolist() == getattr(whole, name).tolist()
    assert np.array_equal(parts.fps, whole.fps, equal_nan=True)
    for row in (0, 15, 16, 99, 100, 199, 249, -1):
        assert parts.texts[row] == whole.texts[row]
        assert parts.paths[row] == whole.paths[row]
    assert parts.texts[90:130] == whole.texts[90:130]
    assert parts.texts[::50] == whole.texts[::50]
    assert list(parts.paths) == list(whole.paths)
    with pytest.raises(IndexError):
        parts.texts[250]


@pytest.mark.long
def test_texts_are_read_by_many_threads(folder, monkeypatch):
    monkeypatch.setattr(shards, "_OPEN_FILES", 1)
    monkeypatch.setattr(shards, "_KEPT_GROUPS", 2)
    parts = read_manifest(folder)
    want = list(parts.texts)
    wrong = []

    def read(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, 250, 100).tolist():
            if parts.texts[row] != want[row]:
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_memory_efficient_reads_the_folder_beside_the_file(folder):
    source = folder.parent / "a.csv"
    assert read_manifest(source, memory_efficient=True).source == folder
    source.write_text(source.read_text() + "\n")
    with pytest.raises(ManifestError, match=r"made from another a\.csv") as caught:
        read_manifest(source, memory_efficient=True)
    assert "--force" in (caught.value.hint or "")
    with pytest.raises(ManifestError, match="does not exist") as caught:
        read_manifest(folder.parent / "b.parquet", memory_efficient=True)
    assert "trainer.data shard" in (caught.value.hint or "")


@pytest.mark.parametrize("given", ["a.csv", "a.shards"])
def test_a_source_with_other_contents_of_the_same_size_is_noticed(folder, given):
    source, path = folder.parent / "a.csv", folder.parent / given
    before, times = source.read_bytes(), source.stat()
    os.utime(source, ns=(1, 1))  # a copy with a time of its own
    assert read_manifest(path, memory_efficient=True).texts[3].startswith("clip 3")
    source.write_bytes(before.replace(b"clip 3,", b"clap 3,"))
    with pytest.raises(ManifestError, match=r"made from another a\.csv: its contents") as caught:
        read_manifest(path, memory_efficient=True)
    assert f"shard {source} {folder} --force" in (caught.value.hint or "")
    source.write_bytes(before)
    # Shards from before contents were kept are read, unless the source was written later.
    index = json.loads((folder / "index.json").read_text())
    for name in ("source", "source_sha256", "source_mtime_ns"):
        del index[name]
    (folder / "index.json").write_text(json.dumps(index))
    os.utime(source, ns=(1, times.st_mtime_ns))
    assert read_manifest(path, memory_efficient=True).texts[3].startswith("clip 3")
    os.utime(source, ns=(1, (folder / "index.json").stat().st_mtime_ns + 1))
    with pytest.raises(ManifestError, match="this was written later"):
        read_manifest(path, memory_efficient=True)


def test_shards_know_a_source_in_another_folder(folder):
    source, out = folder.parent / "a.csv", folder.parent / "b" / "parts.shards"
    out.parent.mkdir()
    assert main(["shard", str(source), str(out), "-q"]) == 0
    assert read_manifest(out).locate(0) == f"{out.parent}/../v/0.mp4"
    source.write_bytes(source.read_bytes().replace(b"clip 3,", b"clap 3,"))
    with pytest.raises(ManifestError, match="made from another"):
        read_manifest(out)
    source.unlink()  # shards alone are a data set
    assert len(read_manifest(out)) == 250


def test_damaged_shards_are_named(folder, tmp_path):
    with pytest.raises(ManifestError, match="that `shard` did not make"):
        read_manifest(tmp_path)
    index = (folder / "index.json").read_text()
    for text in ("", "{}", '{"schema": 1, "rows": ["x"], "group_rows": 4}', "[]"):
        (folder / "index.json").write_text(text)
        with pytest.raises(ManifestError, match=r"index\.json is damaged"):
            read_manifest(folder)
    (folder / "index.json").write_text(index)
    second = (folder / "00002.parquet").read_bytes()
    (folder / "00002.parquet").write_bytes(second[:-100])
    with pytest.raises(ManifestError, match=r"00002\.parquet cannot be read"):
        read_manifest(folder)
    (folder / "00002.parquet").write_bytes((folder / "00003.parquet").read_bytes())
    with pytest.raises(ManifestError, match=r"00002\.parquet is not the shard"):
        read_manifest(folder)
    (folder / "00002.parquet").unlink()
    with pytest.raises(ManifestError, match=r"00002\.parquet does not exist"):
        read_manifest(folder)


def test_rows_that_training_leaves_out_are_left_out_of_shards(tmp_path, capsys):
    source = tmp_path / "a.csv"
    source.write_text(
        "path,text,num_frames,height,width,fps\na,x,5,4,4,24\n,x,5,4,4,24\nb,x,0,4,4,\nc,y,1,2,3,\n"
    )
    assert main(["shard", str(source), "-q"]) == 1
    said = capsys.readouterr().err
    assert "line 3: path is empty" in said
    assert "line 4: num_frames is '0'" in said
    assert read_manifest(tmp_path / "a.shards").fingerprint == read_manifest(source).fingerprint
    assert main(["shard", str(source), "-q"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["shard", str(source), "-q", "--force"]) == 1


def test_parquet_with_nulls_becomes_the_same_shards(tmp_path):
    table = {
        "path": ["a", "b", "c"], "text": ["x", None, "z"], "num_frames": [5, 5, 5],
        "height": [4, 4, 4], "width": [4, 4, 4], "fps": [24.0, None, 30.0],
    }  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert main(["shard", str(tmp_path / "a.parquet"), "-q"]) == 0
    one, two = read_manifest(tmp_path / "a.parquet"), read_manifest(tmp_path / "a.shards")
    assert one.fingerprint == two.fingerprint
    assert list(two.texts) == ["x", "", "z"]
    assert np.isnan(two.fps[1])


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.shards"])
def test_numbers_alone_are_those_of_the_manifest(folder, name):
    source = folder.parent / "a.csv"
    text = source.read_bytes().decode()
    if name != "a.shards":  # a source that has changed since is refused
        source.write_bytes((text + "v/x.mp4,x,many,1,1,1,24,1,0\r\n,x,5,1,1,1,24,1,0\r\n").encode())
    if name == "a.parquet":
        source.write_bytes(text.encode())
        assert main(["convert", str(source), str(folder.parent / name), "-q"]) == 0
    whole = read_manifest(folder.parent / name)
    numbers = read_manifest(folder.parent / name, with_texts=False)
    for column in ("num_frames", "height", "width"):
        assert getattr(numbers, column).tolist() == getattr(whole, column).tolist()
        assert getattr(numbers, column).dtype == getattr(whole, column).dtype
    assert np.array_equal(numbers.fps, whole.fps, equal_nan=True)
    assert numbers.wrong == whole.wrong
    assert len(numbers.texts) == len(whole)
    if name != "a.shards":
        with pytest.raises(LookupError):
            numbers.texts[0]


@pytest.mark.long
def test_stats_says_and_draws_what_is_there(folder, tmp_path, capsys):
    picture = tmp_path / "stats.png"
    config = tmp_path / "config.py"
    config.write_text(
        'bucket_config = {"360p": {51: (1.0, 4)}, "144p": {51: (1.0, 8), 408: (1.0, 2)}}\n'
    )
    words = ["stats", str(folder), str(config), "--world", "2", "--epochs", "2"]
    assert main([*words, "--picture", str(picture), "-q"]) == 0
    printed = capsys.readouterr()
    assert "250 clips" in printed.out
    assert "360p 51f 0.56" in printed.out
    assert "epoch 1: " in printed.out
    assert "warning: 144p 408f has no clip at all" in printed.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*words, "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == 250
    assert [epoch["epoch"] for epoch in document["epochs"]] == [0, 1]
    assert document["epochs"][0]["microbatches"] == sum(
        bucket["microbatches"] for bucket in document["buckets"]
    )
    assert main(["stats", str(folder), "-q"]) == 0
    assert "360x640" in capsys.readouterr().out
    assert main(["stats", str(folder), "--picture", "x.jpg"]) == 2
