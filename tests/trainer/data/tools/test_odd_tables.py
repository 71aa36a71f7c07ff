"""Tables of any bytes and any types of columns: rows come out, or one sentence says why not."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.tables import rows_of, write_table
from trainer.data.manifest.read import read_manifest
from trainer.data.manifest.table_io import open_table

MANY = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


cells = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


@pytest.mark.long
@MANY
@given(
    st.lists(st.tuples(cells, cells), max_size=12),
    st.integers(1, 5),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_csv_read_in_pieces_is_the_same(tmp_path, rows, step, ending):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        # all in quotes: before Python 3.13 a lone return is not quoted when lines end with \n
        writer = csv.writer(file, lineterminator=ending, quoting=csv.QUOTE_ALL)
        writer.writerows([("path", "text"), *rows])
    table, again = open_table(path), open_table(path)
    whole = [pair for lines, some in table.batches(1000) for pair in zip(lines, some, strict=True)]
    pieces = [pair for lines, some in again.batches(step) for pair in zip(lines, some, strict=True)]
    assert pieces == whole
    assert [tuple(row) for _, row in whole] == rows
    table.close()
    again.close()


@pytest.mark.long
@MANY
@given(st.binary(max_size=300))
def test_no_bytes_make_a_verb_fail_in_another_way(do, tmp_path, data):
    """csv as a whole and in pieces agree on rows and on wrong ones; no other error comes out."""
    header = b"path,text,num_frames,height,width\n"
    (tmp_path / "f.csv").write_bytes(header + data)
    (tmp_path / "f.parquet").write_bytes(b"PAR1" + data + b"PAR1")
    assert do("filter f.parquet p.csv --force -q --where path!=x") == 2
    assert do("filter f.csv o.csv --force -q --max-wrong-rows 1000 --where path!=<") in (0, 1)
    table = open_table(tmp_path / "f.csv")
    rows, lines = [], []
    for some_lines, some in table.batches(3):
        rows += some
        lines += some_lines
    # the csv module over the whole text says the same
    text = (tmp_path / "f.csv").read_bytes().decode("utf-8", "surrogateescape")
    reader = csv.reader(io.StringIO(text, newline=""))
    want, bad = [], 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            bad += 1
            continue
        if len(row) == 5:
            want.append(row)
        else:
            bad += bool(row)
    assert rows == want[1:]
    assert len(lines) == len(rows)
    assert len(table.wrong) == bad
    table.close()


PIECES = [b"a", b'"', b'""', b",", b"\n", b"\r\n", b"\r", b" ", b"#", b"\xff", b"\xc3\xbc", b"\0",
          "\U0010ff80\U0010ffff".encode(), b'"x\ny",', b"a,b\n", b"c,\n", b'"q""r",s\n', b"d,e,\n"]  # fmt: skip


@pytest.mark.long
@settings(MANY, max_examples=60)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.booleans())
def test_every_good_row_of_any_csv_comes_through_as_it_was(do, tmp_path, pieces, has_mark):
    """By DuckDB's reader or ours, with a filter and without."""
    data = b"\xef\xbb\xbf" * has_mark + b"path,text\n" + b"".join(pieces)
    (tmp_path / "f.csv").write_bytes(data)
    table = open_table(tmp_path / "f.csv")
    rows = [row for _, some in table.batches(3) for row in some]
    table.close()
    for line in ("convert f.csv o.csv", "dedupe f.csv o.csv --on path,text"):
        assert do(f"{line} --force -q --max-wrong-rows 1000") == bool(table.wrong)
        want = io.StringIO(newline="")
        kept = rows if line.startswith("convert") else list(dict.fromkeys(map(tuple, rows)))
        csv.writer(want).writerows([("path", "text"), *kept])
        assert (tmp_path / "o.csv").read_bytes() == want.getvalue().encode(
            "utf-8", "surrogateescape"
        )


@pytest.mark.slow
def test_many_rows_keep_their_order_and_their_lines(do, tmp_path, capsys):
    """More than DuckDB hands to one thread at a time."""
    rows = [(f"p{n}", "x, y\nz" if n % 7 == 0 else f"t{n % 5000}" * 40, n) for n in range(60_000)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "text", "score"), *rows])
    with (tmp_path / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "score"), *((p, s) for p, _, s in rows[::-3])])
    assert do("filter a.csv f.csv -q --where score>=10") == 0
    assert [row["path"] for row in rows_of(tmp_path / "f.csv")] == [p for p, _, n in rows[10:]]
    assert do("intersect a.csv b.csv i.csv -q") == 0
    assert do("intersect b.csv a.csv j.parquet -q") == 0
    inside = [p for p, _, _ in rows[::-3]][::-1]
    assert [row["path"] for row in rows_of(tmp_path / "i.csv")] == inside
    assert pq.read_table(tmp_path / "j.parquet")["path"].to_pylist() == inside[::-1]
    (tmp_path / "s.csv").write_text(
        "path,note\n" + "".join(f"p{n},{n}\n" for n in range(60_000)[::-1])
    )
    for name in ("m.csv", "m.parquet"):
        assert do(f"merge a.csv s.csv {name} -q --on path") == 0
    assert [row["note"] for row in rows_of(tmp_path / "m.csv")] == [str(n) for _, _, n in rows]
    assert pq.read_table(tmp_path / "m.parquet")["note"].to_pylist() == list(range(60_000))
    with (tmp_path / "a.csv").open("a", newline="") as file:
        file.write("last,x,much\r\n")
    assert do("filter a.csv f.csv -q --force --where score>=10") == 1
    line = len((tmp_path / "a.csv").read_bytes().splitlines())
    assert f"line {line}: score is 'much'" in capsys.readouterr().err


@pytest.mark.long
def test_a_cell_of_megabytes_and_a_file_of_one_column(do, tmp_path):
    text = "x y " * (3 << 18)
    (tmp_path / "a.csv").write_bytes(f"path,text\r\na,{text}\r\nb,".encode() + b"\xff\r\n")
    assert do("convert a.csv o.csv -q") == 0
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    (tmp_path / "p.csv").write_bytes(b'path\r\nb\r\na\r\nb\r\n\r\n""\r\n')
    assert do("dedupe p.csv q.csv -q") == 0
    assert (tmp_path / "q.csv").read_bytes() == b'path\r\nb\r\na\r\n""\r\n'


def test_cut_parquet_files_are_refused(do, tmp_path, capsys):
    write_table(tmp_path / "a.csv", 200)
    assert do("convert a.csv a.parquet") == 0
    whole = (tmp_path / "a.parquet").read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.parquet").write_bytes(whole[:size])
        assert do("convert cut.parquet o.csv -q") == 2
        assert "cut.parquet: not a readable parquet manifest" in capsys.readouterr().err
    flipped = bytearray(whole)
    for at in range(200, len(whole) // 2, 97):
        flipped[at] ^= 0xFF
    (tmp_path / "cut.parquet").write_bytes(flipped)
    assert do("convert cut.parquet o.csv -q --force") in (0, 1, 2)


def test_runaway_quote_takes_a_cell_of_rows_not_the_whole_file(do, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainer.data.manifest.table_io.FIELD_LIMIT", 1000)
    lines = ["path,text", "a,good", 'b,"never closed', *(f"{n},row {n}" for n in range(2000))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert do("convert a.csv o.csv -q") == 2
    assert "line 3: opens a quote that is not closed by line 104" in capsys.readouterr().err
    assert do("convert a.csv o.csv -q --max-wrong-rows 500") == 1
    assert "left out 102 rows" in capsys.readouterr().err
    rows = rows_of(tmp_path / "o.csv")
    assert rows[0]["path"] == "a"
    assert len(rows) == 2002 - 102
    csv.field_size_limit(1 << 24)


NUMBERS = {"num_frames": [9, 9], "height": [32, 32], "width": [40, 40]}
ODD_COLUMNS = {
    "integer text": {"path": ["a", "b"], "text": [1, 2]},
    "float text": {"path": ["a", "b"], "text": [1.5, None]},
    "boolean text": {"path": ["a", "b"], "text": [True, False]},
    "binary paths": {"path": [b"a", b"b\xff"], "text": ["x", "y"]},
    "binary text": {"path": ["a", "b"], "text": [b"x", b"\xff"]},
    "integer paths": {"path": [1, 2], "text": ["x", "y"]},
    "list text": {"path": ["a", "b"], "text": [["x"], ["y", "z"]]},
    "no text": {"path": ["a", "b"], "text": [None, None]},
    "dates": {"path": ["a", "b"], "text": ["x", "y"], "at": [1, 2]},
    "lists": {"path": ["a", "b"], "text": ["x", "y"], "tags": [["t"], []]},
    "dicts": {"path": ["a", "b"], "text": ["x", "y"], "facts": [{"k": 1}, {"k": 2}]},
}  # fmt: skip
ODD_VERBS = [
    "shard a.parquet o.shards -q",
    "convert a.parquet o.csv -q",
    "convert a.parquet o.parquet -q",
    "merge a.parquet b.parquet o.parquet --fill -q",
    "merge b.parquet a.parquet o.parquet --fill -q",
    "merge b.parquet a.parquet o.csv --fill -q",
    "merge b.csv a.parquet o.parquet --fill -q",
    "merge a.parquet b.csv o.parquet --on path -q",
    "merge b.parquet a.parquet o.parquet --on path -q",
    "merge b.csv a.parquet o.parquet --on path -q",
    "merge b.csv a.parquet o.csv --on path -q",
    "filter a.parquet o.parquet --where text~x -q",
    "dedupe a.parquet o.parquet --on text -q",
    "difference a.parquet b.csv o.parquet -q",
    "stats a.parquet -q",
]
# Each starts a process: for the kinds of the column that it reads, and for one that it only copies.
STARTING = {
    "probe a.parquet o.parquet --workers 1 -q": ("binary paths", "integer paths", "lists"),
    "check a.parquet o.parquet --workers 1 -q": ("binary paths", "integer paths", "lists"),
    "clean-captions a.parquet o.csv --workers 1 -q": ("integer text", "binary text", "no text"),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ODD_COLUMNS)
def test_columns_of_any_type_give_rows_or_one_sentence(do, tmp_path, capsys, kind):
    pq.write_table(pa.table({**ODD_COLUMNS[kind], **NUMBERS}), tmp_path / "a.parquet")
    plain = {"path": ["c", "a"], "text": ["x", "y"], "score": [1, 2], **NUMBERS}
    pq.write_table(pa.table(plain), tmp_path / "b.parquet")
    (tmp_path / "b.csv").write_text("path,text,score,num_frames,height,width\na,x,1,9,32,40\n")
    for line in [*ODD_VERBS, *(line for line, kinds in STARTING.items() if kind in kinds)]:
        code = do(f"{line} --force" if "stats" not in line else line)
        said = capsys.readouterr().err
        told = "left out" in said or said.startswith("error: ") or "has no row for" in said
        assert code in (0, 1, 2), line
        assert told or not code or line.startswith("check"), line  # whose report is on stdout
        if code != 2 and "stats" not in line:
            assert (tmp_path / line.split(" -")[0].split()[-1]).exists(), line


def test_texts_and_lists_of_a_parquet_arrive_as_they_are(do, tmp_path):
    table = pa.table({**ODD_COLUMNS["integer text"], **NUMBERS, "tags": [["t"], []]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert do("shard a.parquet o.shards -q") == 0
    assert list(read_manifest(tmp_path / "o.shards").texts) == ["1", "2"]
    paths = {"path": [b"v/a", "größer".encode()], "text": ["x", "y"], **NUMBERS}
    pq.write_table(pa.table(paths), tmp_path / "b.parquet")
    assert do("merge a.parquet b.parquet o.parquet --fill -q") == 0
    merged = pq.read_table(tmp_path / "o.parquet").to_pydict()
    assert merged["path"] == ["a", "b", "v/a", "größer"]
    assert merged["text"] == ["1", "2", "x", "y"]
    assert merged["tags"] == [["t"], [], None, None]


@pytest.mark.long
def test_bytes_that_are_no_text_are_refused_by_column(do, tmp_path, capsys):
    pq.write_table(pa.table({**ODD_COLUMNS["binary paths"], **NUMBERS}), tmp_path / "a.parquet")
    assert do("convert a.parquet o.csv -q") == 2
    said = capsys.readouterr().err
    assert "a.parquet: column 'path' is binary and cannot be read as text: Invalid UTF8" in said
    extra = {"path": ["a"], "text": ["x"], "hash": [b"\xff"]}
    pq.write_table(pa.table(extra), tmp_path / "b.parquet")
    assert do("merge b.parquet b.parquet o.parquet --on path -q") == 2  # nothing to add
    pq.write_table(pa.table({"path": ["a"], "text": ["x"]}), tmp_path / "c.parquet")
    assert do("merge c.parquet b.parquet o.parquet --on path -q") == 2
    assert "column 'hash' is binary, which merge --on cannot carry" in capsys.readouterr().err
    assert do("convert b.parquet o.csv -q") == 0
    assert (tmp_path / "o.csv").read_bytes().endswith(b"a,x,\xff\r\n")
