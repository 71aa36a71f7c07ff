"""Manifests of several folders: a row names the same file in whatever folder a verb writes it."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.clips import write_clip
from tests.trainer.data.tables import rows_of
from trainer.data.manifest.places import Move, normal
from trainer.data.manifest.read import read_manifest

HEAD = "path,text,num_frames,height,width\n"


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """Folders cats and dogs whose manifests have the same relative paths."""
    for name, other in (("cats", "c2"), ("dogs", "d2")):
        (tmp_path / name / "clips").mkdir(parents=True)
        (tmp_path / name / "clips" / "0.mp4").write_bytes(name.encode())
        rows = f"clips/0.mp4,a {name},9,4,4\nclips/{other}.mp4,two,9,4,4\n"
        (tmp_path / name / "m.csv").write_text(HEAD + rows)
    return tmp_path


def files(manifest: Path) -> list[str]:
    found = read_manifest(manifest)
    return [os.path.realpath(found.locate(row)) for row in range(len(found))]


def own(folder: Path, name: str, *clips: str) -> list[str]:
    return [str(folder / name / "clips" / f"{clip}.mp4") for clip in clips]


@pytest.mark.parametrize("out", ["cats/all.csv", "all.parquet", "a/b/all.csv"])
def test_merged_rows_name_the_files_of_their_own_folders(sets, do, out, capsys):
    (sets / out).parent.mkdir(parents=True, exist_ok=True)
    assert do(f"merge cats/m.csv dogs/m.csv {out} -q") == 0
    assert files(sets / out) == [*own(sets, "cats", "0", "c2"), *own(sets, "dogs", "0", "d2")]
    said = capsys.readouterr().err
    assert f"relative paths now start in the folder of {out}" in said
    assert "--root" in said


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "filter cats/m.csv o/x.csv --min-frames 1",
        "filter cats/m.parquet o/x.parquet --min-frames 1",
        "convert cats/m.csv o/x.parquet",
        "convert cats/m.parquet o/x.csv",
        "clean-captions cats/m.csv o/x.csv --workers 1",
        "dedupe cats/m.csv o/x.csv",
        "difference cats/m.csv dogs/m.csv o/x.csv",
        "intersect cats/m.csv cats/m.parquet o/x.csv",
        "merge cats/m.csv extra.csv o/x.csv --on text",
        "shard cats/m.csv o/x.shards",
    ],
)
def test_every_verb_that_writes_elsewhere_names_the_same_files(sets, do, line):
    assert do("convert cats/m.csv cats/m.parquet -q") == 0
    (sets / "extra.csv").write_text("text,score\na cats,1\ntwo,2\n")
    (sets / "o").mkdir()
    assert do(f"{line} -q") == 0
    assert files(sets / line.split()[-3 if "--" in line else -1]) == own(sets, "cats", "0", "c2")


@pytest.mark.long
def test_probe_and_check_in_another_folder(sets, do):
    write_clip(sets / "cats" / "clips" / "0.mp4", 9, threads="1")
    (sets / "cats" / "m.csv").write_text("path,text\nclips/0.mp4,x\n")
    (sets / "o").mkdir()
    assert do("probe cats/m.csv o/p.csv --workers 1 -q") == 0
    assert do("check o/p.csv c.csv --workers 1 -q") == 0
    assert files(sets / "c.csv") == own(sets, "cats", "0")
    assert rows_of(sets / "c.csv")[0]["check"] == "ok"


def test_there_and_back_are_the_bytes_of_the_source(sets, do):
    (sets / "o").mkdir()
    assert do("filter cats/m.csv o/x.csv --min-frames 1 -q") == 0
    assert do("filter o/x.csv cats/y.csv --min-frames 1 -q") == 0
    before = (sets / "cats" / "m.csv").read_text()
    assert (sets / "cats" / "y.csv").read_bytes().decode() == before.replace("\n", "\r\n")


def test_root_keeps_paths_as_they_are(sets, do, capsys):
    assert do("filter cats/m.csv x.csv --min-frames 1 -q", f"--root={sets / 'cats'}") == 0
    assert [row["path"] for row in rows_of(sets / "x.csv")] == ["clips/0.mp4", "clips/c2.mp4"]
    assert "now start in" not in capsys.readouterr().err


@pytest.mark.long
def test_a_clip_is_known_by_its_file_not_by_its_spelling(sets, do):
    """cats and dogs share no file, however alike their paths; here are three ways to write one."""
    (sets / "ways.csv").write_text(
        f"{HEAD}./cats//clips/0.mp4,x,9,4,4\n{sets}/cats/clips/0.mp4,y,9,4,4\n"
        "dogs/../cats/clips/0.mp4,z,9,4,4\n"
    )
    assert do("intersect cats/m.csv dogs/m.csv none.csv -q") == 0
    assert rows_of(sets / "none.csv") == []
    assert do("intersect cats/m.csv ways.csv one.csv -q") == 0
    assert [row["text"] for row in rows_of(sets / "one.csv")] == ["a cats"]
    assert do("difference ways.csv cats/m.csv rest.csv -q") == 0
    assert rows_of(sets / "rest.csv") == []
    assert do("dedupe ways.csv first.csv -q") == 0
    assert [row["text"] for row in rows_of(sets / "first.csv")] == ["x"]
    (sets / "o").mkdir()
    (sets / "o" / "scores.csv").write_text("path,score\n../cats/clips/0.mp4,7\nclips/0.mp4,8\n")
    assert do("merge ways.csv o/scores.csv scored.csv --on path -q") == 0
    assert [row["score"] for row in rows_of(sets / "scored.csv")] == ["7", "7", "7"]


def test_names_that_are_not_utf8_come_through(tmp_path, do, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    rows = b"path,text,num_frames,height,width\n\xff.mp4,caf,9,4,4\n"
    (folder / "m.csv").write_bytes(rows)
    (tmp_path / "plain.csv").write_text(f"{HEAD}p.mp4,x,9,4,4\n")
    assert do("merge -q", str(folder / "m.csv"), "plain.csv", "o.csv") == 0
    assert os.fsencode(files(tmp_path / "o.csv")[0]) == os.fsencode(folder) + b"/\xff.mp4"
    (folder / "m.csv").write_text(f"{HEAD}p.mp4,x,9,4,4\n")
    assert do("convert -q", str(folder / "m.csv"), "o.parquet") == 2
    assert "is not UTF-8, as texts of parquet are" in capsys.readouterr().err
    assert do("convert -q", str(folder / "m.csv"), "o2.csv") == 0
    assert files(tmp_path / "o2.csv") == [str(folder / "p.mp4")]


def test_moves_keep_what_may_follow_a_link():
    move = Move(Path("/d/dogs"), Path("/d/cats"))
    assert move("../cats/x.mp4") == "x.mp4"
    assert move("./a.mp4") == "../dogs/a.mp4"
    assert move("link/../b.mp4") == "../dogs/link/../b.mp4"
    assert move("../../../../z.mp4") == "../../z.mp4"
    assert move("/a.mp4") == "/a.mp4"
    assert Move(Path("/d"), Path("/d/cats"))("cats/a.mp4") == "a.mp4"
    assert normal("//a//b/./c/..") == "/a/b"


@pytest.mark.parametrize("out", ["o.csv", "o.parquet"])
def test_views_of_strings_are_texts(tmp_path, do, out):
    """Arrow has no array_take of them: choosing rows was a traceback."""
    columns = {
        "path": pa.array(["a", "b", "a"], pa.string_view()),
        "text": pa.array(["x", None, "z"], pa.string_view()),
        "bytes": pa.array([b"x", b"1", None], pa.binary_view()),
        "list": pa.array([["a"], None, []], pa.list_(pa.string_view())),
        "num_frames": [1, 2, 3],
    }
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    assert do(f"dedupe v.parquet {out} -q") == 0
    assert do(f"filter v.parquet {out} --min-frames 2 -q --force") == 0
    if out == "o.parquet":
        assert pq.read_table(tmp_path / out)["path"].to_pylist() == ["b", "a"]
