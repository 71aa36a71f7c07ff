"""The verbs of python -m trainer.data."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.trainer.data.clips import write_clip
from tests.trainer.data.tables import rows_of
from trainer.data import digits
from trainer.data.__main__ import main
from trainer.data.manifest.read import read_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tools") / "set"
    digits.make(out, clips=20, seed=1)
    return out


@pytest.mark.long
def test_probe_writes_what_the_files_say_in_the_order_of_the_rows(folder, tmp_path, capsys):
    want = read_manifest(folder / digits.MANIFEST)
    source = tmp_path / "clips.csv"
    rows = [f"{want.locate(row)},{want.texts[row]},note {row}" for row in range(20)]
    source.write_text("path,text,note\n" + "\n".join(rows))
    for name in ("out.csv", "out.parquet"):
        assert main(["probe", str(source), str(tmp_path / name), "--workers", "2"]) == 0
        got = read_manifest(tmp_path / name)
        assert list(got.texts) == list(want.texts)
        if name == "out.parquet":
            notes = pq.read_table(tmp_path / name)["note"].to_pylist()
        else:
            notes = [row["note"] for row in rows_of(tmp_path / name)]
        assert notes == [f"note {row}" for row in range(20)]
        for column in ("num_frames", "height", "width", "fps"):
            assert getattr(got, column).tolist() == getattr(want, column).tolist()
    assert "out.csv: 20 rows" in capsys.readouterr().out


@pytest.mark.long
def test_probe_leaves_out_what_it_cannot_read_and_says_so(tmp_path, capsys):
    write_clip(tmp_path / "a.mkv", 12, codec="libx264", preset="ultrafast", threads="1")
    (tmp_path / "b.mp4").write_text("no video")
    (tmp_path / "clips.csv").write_text("path,text\na.mkv,x\nb.mp4,y\nc.mp4,z\n")
    assert main(["probe", str(tmp_path / "clips.csv"), str(tmp_path / "out.csv")]) == 1
    printed = capsys.readouterr()
    assert f"line 3: {tmp_path}/b.mp4: Invalid data" in printed.err
    assert f"line 4: {tmp_path}/c.mp4: No such file" in printed.err
    got = read_manifest(tmp_path / "out.csv")
    assert (list(got.paths), got.num_frames.tolist()) == (["a.mkv"], [12])
    assert main(["probe", str(tmp_path / "clips.csv"), str(tmp_path / "out.txt")]) == 2
    assert "a manifest is .csv or .parquet" in capsys.readouterr().err


def test_stats_prints_buckets_and_steps_and_warns_of_empty_ones(folder, tmp_path, capsys):
    config = tmp_path / "config.py"
    config.write_text('bucket_config = {"16px": {8: (1.0, 4)}, "32px": {4: (0.0, 99)}}\n')
    manifest = str(folder / digits.MANIFEST)
    assert main(["stats", manifest, str(config), "--world", "2"]) == 0
    out = capsys.readouterr().out
    assert "20 clips, 0 in a bucket" not in out
    config.write_text('bucket_config = {"16px": {8: (1.0, 6)}, "32px": {4: ((1.0, 0.5), 99)}}\n')
    assert main(["stats", manifest, str(config), "--world", "2"]) == 0
    printed = capsys.readouterr()
    assert "steps on 2 ranks" in printed.out
    assert "16px 8f 1.00" in printed.out
    assert "warning: 32px 4f 1.00 has" in printed.err
    assert main(["stats", str(tmp_path / "none.csv"), str(config)]) == 2


@pytest.mark.long
def test_a_place_that_cannot_be_written_is_one_sentence(folder, tmp_path, capsys):
    below = tmp_path / "file" / "x"
    below.parent.write_text("mine")
    manifest = str(folder / digits.MANIFEST)
    assert main(["stats", manifest, "--picture", f"{below}.png"]) == 1
    assert capsys.readouterr().err.endswith("Not a directory\n")
    assert main(["encode", "demo", str(below), "--data-path", manifest]) == 1
    assert capsys.readouterr().err == f"error: {below}: Not a directory\n"
    assert digits.main(["--out", str(below), "--clips", "3", "--seed", "1"]) == 1
    assert f"error: {below} cannot be written: " in capsys.readouterr().err


def test_condition_of_two_dashes_is_refused_with_a_sentence(tmp_path, capsys):
    """argparse before Python 3.13 makes a list of it."""
    source = tmp_path / "clips.csv"
    source.write_text("path,num_frames\na.mp4,1\n")
    assert main(["filter", str(source), str(tmp_path / "out.csv"), "--where=--"]) == 2
    assert "--where '--': " in capsys.readouterr().err
