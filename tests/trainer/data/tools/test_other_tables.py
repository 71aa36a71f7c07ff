"""Tables as other people publish them: what they are is said, and their columns can be named."""

import csv
import os
import shlex
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.clips import write_clip
from tests.trainer.data.tables import rows_of
from trainer.data.__main__ import main
from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.read import read_manifest

OPENVID = (
    "video,caption,aesthetic score,frame,fps,seconds\n"
    'a.mp4,"A man says ""hello, world"", then leaves.",5.1,20,24.0,0.8\n'
    'b.mp4,"line one\nline two",4.9,30,24.0,1.2\n'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OPENVID, ["no column 'path'; it has 'video', 'caption'", "--columns path=video,text=caption"]),
        ("path;text\na.mp4;a red, round ball\n", ["separated by semicolons"]),
        ("path\ttext\na.mp4\tx\n", ["separated by tabs"]),
        ("a.mp4,a red ball\nb.mp4,a blue ball\n", ["first line looks like a clip"]),
        ("id,url,name\n1,https://x/1.mp4,a man\n", ["--columns path=COLUMN,text=name"]),
        ("path,words\na.mp4,x\n", ["no column 'text'", "--columns text=COLUMN"]),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
         ["is a git-lfs pointer", "git lfs pull"]),
        ("path,text\na.mp4,x\n".encode("utf-16"), ["not UTF-8 (it looks like UTF-16)", "iconv"]),
        ("path,text\na.mp4,x\n".encode("utf-16-le"), ["not UTF-8 (it looks like UTF-16LE)"]),
        ("path,text\na.mp4,x\n".encode("utf-16-be"), ["(it looks like UTF-16BE)", "-f UTF-16BE"]),
        ("path,text\na.mp4,x\n".encode("utf-32"), ["not UTF-8 (it looks like UTF-32)"]),
        (b"path,te\0xt\na.mp4,x\n", ["is not a table: byte 8 of its first line is NUL"]),
        (bytes(5000), ["begins with NUL bytes only", "it was not written to its end"]),
        (b"\0path,text\n", ["byte 1 of its first line is NUL"]),
        (b"PAR1\x15\0\x15", ["is a parquet file, not a csv", "name it .parquet"]),
        (b"PK\3\4\x14\0", ["a spreadsheet, perhaps"]),
        ("path,text\na.mp4,x\n", ["no column 'num_frames'; make it with python -m trainer.data probe"]),
    ],
)  # fmt: skip
def test_a_table_that_is_none_of_ours_is_said_to_be_what_it_is(tmp_path, text, said):
    source = tmp_path / "m.csv"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ManifestError) as caught:
        read_manifest(source)
    for part in said:
        assert part in caught.value.full_text()


@pytest.fixture
def clips(tmp_path):
    for name in ("a", "b"):
        write_clip(tmp_path / f"{name}.mp4", 9, threads="1", preset="ultrafast")
    (tmp_path / "o.csv").write_text(OPENVID)
    rows = list(csv.DictReader(OPENVID.splitlines(keepends=True)))
    table = {name: [row[name] for row in rows] for name in rows[0]}
    pq.write_table(pa.table(table), tmp_path / "o.parquet")
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("source", ["o.csv", "o.parquet"])
@pytest.mark.parametrize("out", ["m.csv", "m.parquet", "in/m.parquet"])
def test_probe_takes_columns_of_other_names(clips, do, source, out):
    (clips / "in").mkdir()
    assert do(f"probe {source} {out} --columns path=video,text=caption --workers 1 -q") == 0
    made = read_manifest(clips / out)
    assert [text.split()[0] for text in made.texts] == ["A", "line"]
    assert made.num_frames.tolist() == [9, 9]
    assert (clips / made.locate(1)).resolve() == clips / "b.mp4"
    if out == "m.csv":
        assert rows_of(clips / out)[1]["aesthetic score"] == "4.9"
        assert "video" not in rows_of(clips / out)[0]


@pytest.mark.long
def test_data_set_is_known_by_its_name(clips, do):
    assert do("probe o.csv m.csv --columns OpenVid-1M --workers 1 -q") == 0
    assert [text.split()[0] for text in read_manifest(clips / "m.csv").texts] == ["A", "line"]


WEBVID = "videoid,contentUrl,duration,page_dir,name\n7,https://x/7.mp4,PT6S,001_050,a man\n"
VIDGEN = '[{"vid": "q-Scene-0005", "caption": "a man"}]'
FETCHED = "key,status,caption,url\n000120007,success,a man,u\n000120008,failed_to_download,a,u\n"


@pytest.mark.parametrize(
    ("name", "text", "made"),
    [
        ("results 10M.csv", WEBVID, "001_050/7.mp4"),  # a blank, as in downloads of a browser
        ("VidGen_1M's.json", VIDGEN, "q-Scene-0005.mp4"),
        ("00012.csv", FETCHED, "00012/000120007.mp4"),
    ],
)
def test_table_without_files_is_named_with_what_makes_one_of_it(
    tmp_path, do, capsys, name, text, made
):
    (tmp_path / name).write_text(text)
    source = name
    while not source.endswith(".clips.csv"):
        assert do("probe", source, "m.csv", "-q") == 2
        hint = capsys.readouterr().err.partition("python -c ")[2]
        assert hint, "nothing says what to do"
        subprocess.run([sys.executable, "-c", shlex.split(hint)[0]], cwd=tmp_path, check=True)
        source = str(next(tmp_path.glob("*.clips.csv"), tmp_path / f"{name[:-5]}.csv"))
    assert [(row["path"], row["text"]) for row in rows_of(tmp_path / source)] == [(made, "a man")]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("videoID,url,timestamp,caption,matching_score,desirable_filtering,shot_boundary_detection",
         "pieces of videos on the web ('url', 'videoID', 'timestamp'), not files"),  # Panda-70M
        ("YoutubeID,Start_timestamp,End_timestamp,Caption,Aesthetic_Score,UMT_Score",
         "pieces of videos on the web ('YoutubeID', 'Start_timestamp')"),  # InternVid
        ("id,content_loc,title", "its rows are videos on the web ('content_loc')"),  # Pexels
        ("clip_id,file_path,short_caption,dense_caption", "path=file_path,text=dense_caption"),
        ("Video Path,Caption", "'path=Video Path,text=Caption' takes its columns"),
    ],
)  # fmt: skip
def test_tables_of_published_sets_are_told_what_they_lack(tmp_path, header, said):
    source = tmp_path / "m.csv"
    source.write_text(header + "\n" + ",".join("x" * len(header.split(","))) + "\n")
    with pytest.raises(ManifestError) as caught:
        read_manifest(source)
    assert said in caught.value.full_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("panda70m_training_2m", "its rows are videos on the web, not files"),
        ("InternVid-10M-FLT", "its rows are videos on the web, not files"),
        ("webvid-10m", "names no files (page_dir/videoid.mp4)"),
        ("VidGen-1M", "names no files (vid.mp4)"),
        ("nobodys-set", "nor a data set known by name (openvid, miradata, open-sora-plan)"),
    ],
)
def test_data_sets_whose_tables_name_no_files_are_known_as_such(clips, do, capsys, name, said):
    with pytest.raises(SystemExit):
        do(f"probe o.csv m.csv --columns {name}")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m.csv.gz", "gunzip"),
        ("train 2m.zip", "unzip"),
        ("m.tsv", "delim='"),
        ("m.jsonl", "json"),
        ("m.JSON", "json"),
        ("m.CSV", "name it .csv"),
    ],
)
def test_files_of_other_formats_are_said_to_be_made_csv(tmp_path, name, said):
    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path / name)
    assert said in str(caught.value.hint)


@pytest.mark.parametrize("words", ["path", "path=", "path=video,path=caption", "=video"])
def test_wrong_names_of_columns_are_refused(clips, do, words, capsys):
    with pytest.raises(SystemExit):
        do(f"probe o.csv m.csv --columns {words}")
    assert "is not OURS=THEIRS" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_named_with_those_that_are(clips, do, capsys):
    assert do("probe o.csv m.csv --columns path=file,text=caption") == 2
    assert "no column 'file'; it has 'video', 'caption'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["m.csv", "m.parquet"])
def test_rates_may_be_fractions_as_ffprobe_writes_them(tmp_path, do, name):
    cells = ["24/1", "30000/1001", "0/0", "25", "1/x"]
    rows = "".join(f"{n}.mp4,x,9,4,4,{cell}\n" for n, cell in enumerate(cells))
    (tmp_path / "m.csv").write_text(f"path,text,num_frames,height,width,fps\n{rows}")
    if name == "m.parquet":  # as texts, which other programs write
        columns = list(csv.DictReader((tmp_path / "m.csv").open()))
        pq.write_table(
            pa.table({k: [row[k] for row in columns] for k in columns[0]}), tmp_path / name
        )
    found = read_manifest(tmp_path / name)
    assert [round(fps, 2) for fps in found.fps.tolist()[:2]] == [24.0, 29.97]
    assert found.fps[3] == 25
    assert [row.reason for row in found.wrong] == ["fps is '1/x', not between 0 and 10000"]
    assert do(f"filter {name} fast.csv --min-fps 24.5 -q") == 1
    assert [row["fps"] for row in rows_of(tmp_path / "fast.csv")] == ["30000/1001", "25"]
    assert do("convert m.csv p.parquet -q") == 1  # without the row of 1/x
    assert read_manifest(tmp_path / "p.parquet").fps.tolist()[3] == 25


def test_more_wrong_rows_can_be_allowed_for_a_run(tmp_path, do, capsys):
    good = "".join(f"{n}.mp4,x,99,144,256\n" for n in range(4))
    bad = "".join(f"{n}.mp4,x,many,144,256\n" for n in range(150))
    (tmp_path / "m.csv").write_text(f"path,text,num_frames,height,width\n{good}{bad}")
    with pytest.raises(ManifestError) as caught:
        read_manifest(tmp_path / "m.csv")
    assert "--dataset.max-wrong-rows N" in str(caught.value.hint)
    (tmp_path / "c.py").write_text(
        'bucket_config = {"144p": {51: (1.0, 2)}}\ndataset = dict(max_wrong_rows=150)\n'
    )
    assert do("simulate m.csv c.py --ranks 1") == 1
    assert "left out 150 rows" in capsys.readouterr().err


def test_a_pipe_as_manifest_is_refused_and_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "a.csv")
    os.mkfifo(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        for verb in (["probe"], ["check"], ["filter", "--min-frames", "2"]):
            words = [verb[0], str(tmp_path / name), str(tmp_path / "o.csv"), *verb[1:]]
            assert main(words) == 2
            assert (
                "is a pipe or a device, and a manifest is a plain file" in capsys.readouterr().err
            )
