"""Verbs that choose, join and rewrite rows: what comes out, in which order, and what is said."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.tables import NAMES, rows_of, write_table
from trainer.captions import clean_caption
from trainer.data.__main__ import main
from trainer.data.manifest.read import read_manifest

MANY = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_converting_there_and_back_gives_the_same_bytes(do, tmp_path):
    source = write_table(tmp_path / "a.csv", 300)
    assert do("convert a.csv b.parquet") == 0
    assert do("convert b.parquet c.csv") == 0
    assert (tmp_path / "c.csv").read_bytes() == source.read_bytes()
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "b.parquet")}
    assert types["num_frames"] == types["resolution"] == "int64"
    assert types["fps"] == types["vmaf"] == "double"
    assert read_manifest(tmp_path / "b.parquet").fingerprint == read_manifest(source).fingerprint


def test_types_of_other_columns_are_what_all_their_cells_are(do, tmp_path):
    rows = ["path,text,code,n,x,none", "a,t,007,1,1,", "b,t,8,,2.5,", "c,t,9,3,nan,"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    assert do("convert a.csv b.parquet") == 0
    table = pq.read_table(tmp_path / "b.parquet")
    assert table["code"].to_pylist() == ["007", "8", "9"]
    assert table["n"].to_pylist() == [1, None, 3]
    assert table["x"].to_pylist()[:2] == [1.0, 2.5]
    assert table["none"].to_pylist() == ["", "", ""]


def test_parquet_keeps_its_types_and_what_no_csv_could_hold(do, tmp_path):
    table = pa.table(
        {
            "path": ["a", "b", "c"],
            "text": pa.array(["x", None, "z"], pa.large_string()),
            "when": pa.array([1, 2, 3], pa.timestamp("ms")),
            "tags": [["p"], [], None],
            "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert do("filter a.parquet b.parquet --where", "path != b") == 0
    got = pq.read_table(tmp_path / "b.parquet")
    assert got.schema.field("when").type == pa.timestamp("ms")
    assert got["tags"].to_pylist() == [["p"], None]
    assert got["kind"].to_pylist() == ["u", "u"]
    assert do("convert a.parquet c.csv") == 0
    assert rows_of(tmp_path / "c.csv")[0]["tags"] == '["p"]'


def test_wrong_cells_are_listed_and_the_row_left_out(do, tmp_path, capsys):
    lines = ["path,text,num_frames", "a,x,5", "b,x,five", "c,x", "d,x,7", "e\udcff,x,1"]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    assert do("convert a.csv b.parquet") == 1
    said = capsys.readouterr().err
    assert "left out 3 rows" in said
    assert "line 3: num_frames 'five' is not an integer" in said
    assert "line 4: 2 cells, the header has 3" in said
    assert "line 6: path 'e\\udcff' is not UTF-8" in said
    assert pq.read_table(tmp_path / "b.parquet")["path"].to_pylist() == ["a", "d"]
    # a csv holds any bytes and any cell
    assert do("convert a.csv c.csv") == 1
    assert "c,x" not in (tmp_path / "c.csv").read_bytes().decode("utf-8", "surrogateescape")
    assert b"e\xff,x,1" in (tmp_path / "c.csv").read_bytes()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_filter_keeps_rows_in_order(do, tmp_path, suffix, capsys):
    write_table(tmp_path / "a.csv", 400)
    assert do("convert a.csv a.parquet") == 0
    line = "--min-frames 100 --max-frames 200 --min-resolution 720p --max-aspect 1 --min-fps 23.9"
    assert do(f"filter a.{suffix} o.csv {line} --where", "vmaf > 0.2", "--where", "text ~ 1") == 0
    want = [
        row["path"]
        for row in rows_of(tmp_path / "a.csv")
        if 100 <= int(row["num_frames"]) <= 200
        and int(row["resolution"]) >= 921600
        and float(row["aspect_ratio"]) <= 1
        and row["fps"]
        and float(row["vmaf"]) > 0.2
        and "1" in row["text"]
    ]
    assert 5 < len(want) < 200
    assert [row["path"] for row in rows_of(tmp_path / "o.csv")] == want
    assert f"o.csv: {len(want)} of 400 rows" in capsys.readouterr().out


@pytest.mark.long
def test_filter_by_what_is_missing_names_the_verb_that_makes_it(do, tmp_path, capsys):
    write_table(tmp_path / "a.csv", 3)
    for words, said in (
        ("--checked", "no column 'check'; make it with python -m trainer.data check"),
        (
            "--max-size 50M",
            "no column 'file_size'; make it with python -m trainer.data probe --file",
        ),
        ("--where lang==en", "no column 'lang'; it has 'path', 'text'"),
        ("", "filter by what?"),
        ("--min-frames many", "--min-frames 'many' is not a number"),
        ("--where vmaf>much", "'much' is not a number"),
        ("--where text~(", "--where 'text~('"),
    ):
        assert do(f"filter a.csv o.csv {words}") == 2
        assert said in capsys.readouterr().err


def test_filter_lists_what_cannot_be_compared(do, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("path,text,vmaf\na,x,0.5\nb,x,\nc,x,good\nd,x,0.1\n")
    assert do("filter a.csv o.csv --where vmaf>0.2") == 1
    printed = capsys.readouterr()
    assert "line 4: vmaf is 'good'" in printed.err
    assert "o.csv: 1 of 4 rows" in printed.out
    assert [row["path"] for row in rows_of(tmp_path / "o.csv")] == ["a"]


CONDITIONS = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from("textvmaf<>=!~'\"();,-*/ \\[]{}?$10\n"), max_size=16),
)


@pytest.mark.long
@MANY
@given(CONDITIONS)
def test_no_condition_fails_in_another_way(do, tmp_path, capsys, text):
    (tmp_path / "a.csv").write_text("path,text,vmaf\na,x,0.5\nb,,\nc,x(,5\n")
    code = do("filter a.csv o.csv --force -q", f"--where={text}")
    printed = capsys.readouterr()
    expected = ("error: --where ", "error: a.csv: no column ")
    assert code in (0, 1) or (code == 2 and printed.err.startswith(expected))
    assert len(printed.err.splitlines()) <= 2


@pytest.mark.long
def test_sql_conditions_choose_rows(do, tmp_path):
    (tmp_path / "a.csv").write_text(
        "path,text,Vmaf,num_frames,c0\na,x dog,0.5,7,p\nb,,,9,q\nc,it's,5,30,r\n"
    )
    for condition, want in (
        ("vmaf > 0.1 AND num_frames < 10", "a"),
        ("path IN ('a', 'c')", "ac"),
        ("text == 'x dog' OR c0 = 'q'", "ab"),
        ("Vmaf IS NULL", "b"),
        ("num_frames > vmaf", "ac"),
        ("length(text) = 0 -- empty", "b"),
        ("text ~ it's", "c"),
        ("text != x dog", "bc"),
        ("text ~ ^(?=.*dog)", "a"),
        (r"text ~ \bdog$", "a"),
    ):
        assert do("filter a.csv o.csv --force -q", "--where", condition) == 0, condition
        got = "".join(row["path"] for row in rows_of(tmp_path / "o.csv"))
        assert got == want, condition


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "condition",
    [
        "true; DROP TABLE t0",
        "true) FROM t0; SELECT (true",
        "true) FROM read_text('/etc/passwd') WHERE (true",
        "(SELECT count(*) FROM read_text('/etc/hostname')) > 0",
        "(SELECT count(*) FROM read_csv('/etc/hostname')) > 0",
        "(SELECT count(*) FROM '/etc/hostname') > 0",
        "(SELECT count(*) FROM glob('/*')) > 0",
        "true, true",
        "much > 2 AND true",
        "vmaf >",
        "count(*) > 1",
        "text + vmaf > 2",
        "*",
    ],
)
def test_a_condition_is_one_expression_that_opens_no_file(do, tmp_path, capsys, suffix, condition):
    (tmp_path / "a.csv").write_text("path,text,vmaf\na,x,0.5\nb,,\n")
    assert do("convert a.csv a.parquet -q") == 0
    assert do(f"filter a.{suffix} o.csv -q", "--where", condition) == 2
    assert capsys.readouterr().err.startswith(f"error: --where {condition!r}: ")
    assert not (tmp_path / "o.csv").exists()
    assert not list(tmp_path.glob(".o*"))


@pytest.mark.long
def test_sets_of_rows_keep_the_order_of_the_first(do, tmp_path):
    write_table(tmp_path / "a.csv", 100, copies=30)
    assert do("dedupe a.csv u.csv") == 0
    paths = [row["path"] for row in rows_of(tmp_path / "u.csv")]
    assert paths == [f"v/{index}.mp4" for index in range(70)]
    assert do("dedupe a.csv h.csv --on height,width") == 0
    sizes = [(row["height"], row["width"]) for row in rows_of(tmp_path / "h.csv")]
    every = [(row["height"], row["width"]) for row in rows_of(tmp_path / "a.csv")]
    assert sizes == list(dict.fromkeys(every))
    assert do("filter a.csv f.csv --min-frames 150") == 0
    assert do("convert f.csv f.parquet") == 0
    some = {row["path"] for row in rows_of(tmp_path / "f.csv")}
    for verb, inside in (("difference", False), ("intersect", True)):
        assert do(f"{verb} a.csv f.parquet {verb}.csv") == 0  # csv against parquet
        got = [row["path"] for row in rows_of(tmp_path / f"{verb}.csv")]
        assert got == [
            r["path"] for r in rows_of(tmp_path / "a.csv") if (r["path"] in some) == inside
        ]


@pytest.mark.long
@settings(MANY, max_examples=10)
@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40))
def test_sets_equal_pythons_own(do, tmp_path, mine, others):
    for name, numbers in (("a", mine), ("b", others)):
        (tmp_path / f"{name}.csv").write_text(
            "path,text\n" + "".join(f"{number},{at}\n" for at, number in enumerate(numbers))
        )
    for verb, want in (
        ("intersect", [n for n in mine if n in others]),
        ("difference", [n for n in mine if n not in others]),
        ("dedupe", list(dict.fromkeys(mine))),
    ):
        other = "" if verb == "dedupe" else "b.csv"
        assert do(f"{verb} a.csv {other} o.csv --force -q") == 0
        assert [int(row["path"]) for row in rows_of(tmp_path / "o.csv")] == want


def test_merge_puts_tables_behind_each_other(do, tmp_path, capsys):
    write_table(tmp_path / "a.csv", 10)
    write_table(tmp_path / "b.csv", 5, seed=2)
    assert do("convert b.csv b.parquet") == 0
    assert do("merge a.csv b.parquet c.csv") == 0
    both = rows_of(tmp_path / "a.csv") + rows_of(tmp_path / "b.csv")
    assert rows_of(tmp_path / "c.csv") == both
    (tmp_path / "d.csv").write_text("path,text,lang\nx,y,en\n")
    assert do("merge a.csv d.csv e.csv") == 2
    assert "d.csv: no column 'num_frames', which a.csv has" in capsys.readouterr().err
    assert do("merge a.csv d.csv e.csv --fill") == 0
    last = rows_of(tmp_path / "e.csv")[-1]
    assert (last["path"], last["num_frames"], last["lang"]) == ("x", "", "en")


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_merge_on_a_column_puts_tables_side_by_side(do, tmp_path, suffix, capsys):
    write_table(tmp_path / "a.csv", 10)
    assert do("convert a.csv a.parquet") == 0
    (tmp_path / "s.csv").write_text(
        "path,score,note,text\nv/7.mp4,0.5,big,other\nv/2.mp4,1,,other\nv/99.mp4,2,,other\n"
    )
    assert do(f"merge a.{suffix} s.csv o.{suffix} --on path") == 0
    assert do(f"convert o.{suffix} r.csv") == 0
    rows = rows_of(tmp_path / "r.csv")
    assert tuple(rows[0]) == (*NAMES, "score", "note")
    scores = {row["path"]: float(row["score"]) for row in rows if row["score"]}
    assert scores == {"v/2.mp4": 1, "v/7.mp4": 0.5}
    assert len(rows) == 10
    assert all(row["text"].startswith("clip") for row in rows)  # what the first has stays
    assert do(f"merge a.{suffix} r.csv p.csv --on path") == 0  # score and note
    assert do("merge r.csv a.csv q.csv --on path") == 2
    assert "no column that is not there already" in capsys.readouterr().err
    (tmp_path / "t.csv").write_text("path,score\nx,1\ny,2\nx,3\n")
    (tmp_path / "w.csv").write_text("path,file_size\nx,1\ny,many\n")
    assert do(f"merge a.{suffix} w.csv w.parquet --on path") == 2
    assert "w.csv: line 3: file_size 'many' is not an integer" in capsys.readouterr().err
    (tmp_path / "l.csv").write_bytes(b"path,sung\nx,ok\ny,caf\xe9\n")
    assert do(f"merge a.{suffix} l.csv l.parquet --on path") == 2
    assert r"l.csv: line 3: sung 'caf\udce9' is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "l.parquet").exists()
    assert do(f"merge a.{suffix} l.csv l2.csv --on path") == 0
    assert do(f"merge a.{suffix} t.csv u.csv --on path") == 2
    assert "path 'x' is in line 2 and in line 4" in capsys.readouterr().err


@pytest.mark.long
def test_clean_captions_uses_the_trainers_own_function(do, tmp_path, capsys):
    (tmp_path / "a.csv").write_text('path,text\na,"  A <b>dog</b>  runs &amp; BARKS "\nb,fine\n')
    assert do("clean-captions a.csv o.csv --workers 1") == 0
    rows = rows_of(tmp_path / "o.csv")
    assert [row["text"] for row in rows] == [
        clean_caption("  A <b>dog</b>  runs &amp; BARKS "),
        clean_caption("fine"),
    ]
    assert "2 rows, 1 caption changed" in capsys.readouterr().out


def test_missing_library_is_named_with_what_to_do(do, tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "trainer.data.tools.sets", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert do("dedupe a.csv o.csv") == 2
    assert "docs/guide/install.md" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["a#b", "a?mode=rwc", "100%", "a%20b", "a b", "größer", "a;b&c", "a[1]", "*", "a=b", "'", "{}"],
)
def test_a_path_may_have_any_sign(do, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.csv").write_text("path,text\nx,one\ny,two\n")
    (folder / "s.csv").write_text("path,score\nx,1\ny,2\n")
    words = [str(folder / part) for part in ("a.csv", "s.csv", f"{name}.csv")]
    assert main(["merge", *words, "--on", "path", "-q"]) == 0
    assert [row["score"] for row in rows_of(folder / f"{name}.csv")] == ["1", "2"]
    made = folder / f"{name}.parquet"
    assert main(["convert", words[2], str(made), "-q"]) == 0
    assert main(["filter", str(made), words[2], "-q", "--force", "--where", "score = 2"]) == 0
    assert [row["path"] for row in rows_of(folder / f"{name}.csv")] == ["y"]
    made.unlink()
    assert {path.name for path in folder.iterdir()} == {"a.csv", "s.csv", f"{name}.csv"}
    assert [path.name for path in tmp_path.iterdir()] == [name]
