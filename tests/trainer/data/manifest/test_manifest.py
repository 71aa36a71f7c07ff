"""Reading manifests: what is kept, what is refused and where the message points."""

import contextlib
import csv
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.data.manifest.manifest import ManifestError
from trainer.data.manifest.read import read_manifest

HEADER = "path,text,num_frames,height,width,fps,vmaf\n"


def write(folder: Path, body: str, header: str = HEADER, name: str = "clips.csv") -> Path:
    path = folder / name
    path.write_bytes((header + body).encode("utf-8", "surrogateescape"))
    return path


def test_columns_arrive_typed(tmp_path):
    body = 'a.mp4,"two, words",51.0,360,640,23.976,81\n/abs/b.mp4,Größe,102,720,1280,,x\n'
    manifest = read_manifest(write(tmp_path, body))
    assert list(manifest.paths) == ["a.mp4", "/abs/b.mp4"]
    assert list(manifest.texts) == ["two, words", "Größe"]
    assert manifest.num_frames.tolist() == [51, 102]
    assert manifest.fps[0] == pytest.approx(23.976)
    assert math.isnan(manifest.fps[1])
    assert manifest.locate(0) == str(tmp_path / "a.mp4")
    assert manifest.locate(1) == "/abs/b.mp4"
    assert read_manifest(tmp_path / "clips.csv", root="/elsewhere").locate(0) == "/elsewhere/a.mp4"


def test_missing_column_names_the_verb_that_makes_it(tmp_path):
    path = write(tmp_path, "a.mp4,x\n", "path,text\n")
    with pytest.raises(ManifestError, match=r"no column 'num_frames'.*trainer\.data probe"):
        read_manifest(path)
    path = write(tmp_path, "a.mp4,3,3,3\n", "path,num_frames,height,width\n")
    with pytest.raises(ManifestError, match="no column 'text'"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a.mp4,x,0,360,640,24,1", "num_frames is '0'"),
        ("a.mp4,x,51.5,360,640,24,1", "num_frames is '51.5'"),
        ("a.mp4,x,51,nan,640,24,1", "height is 'nan'"),
        ("a.mp4,x,51,360,1e99,24,1", "width is '1e99'"),
        ("a.mp4,x,51,360,,24,1", "width is ''"),
        ("a.mp4,x,51,360,640,-3,1", "fps is '-3'"),
        ("a.mp4,x,51,360,640,inf,1", "fps is 'inf'"),
        ("a.mp4,x,51,360,640,fast,1", "fps is 'fast'"),
        (",x,51,360,640,24,1", "path is empty"),
        ("a.mp4,x,51,360", "4 cells, the header has 7"),
        ("a.mp4,x\udcff,51,360,640,24,1", "text is not UTF-8"),
    ],
)
def test_wrong_row_is_left_out_and_listed_with_its_line(tmp_path, row, reason):
    good = "g.mp4,x,51,360,640,24,1\n"
    path = write(tmp_path, f'm.mp4,"two\nlines",51,360,640,24,1\n{row}\n\n{good}')
    manifest = read_manifest(path)
    assert list(manifest.paths) == ["m.mp4", "g.mp4"]
    assert [wrong.line for wrong in manifest.wrong] == [4]
    assert reason in manifest.wrong[0].reason
    with pytest.raises(ManifestError, match=r"1 row had to be left out, 0 are allowed\n  line 4: "):
        read_manifest(path, max_wrong_rows=0)


def test_file_names_may_be_any_bytes(tmp_path):
    manifest = read_manifest(write(tmp_path, "bad\udcff.mp4,x,51,360,640,24,1\n"))
    assert manifest.paths[0] == "bad\udcff.mp4"
    assert len(manifest.fingerprint) == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (HEADER.encode(), "no usable row"),
        (b"\x00\x01\x02", "byte 1 of its first line is NUL"),
    ],
)
def test_files_that_are_no_manifest_say_so(tmp_path, content, message):
    path = tmp_path / "clips.csv"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=message):
        read_manifest(path)


def test_missing_file_wrong_suffix_and_doubled_column(tmp_path):
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(tmp_path / "none.csv")
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(tmp_path / "none.parquet")
    with pytest.raises(ManifestError, match=r"\.csv or \.parquet"):
        read_manifest(tmp_path / "clips.json")
    with pytest.raises(ManifestError, match="'text' appears twice"):
        read_manifest(write(tmp_path, "a,b,1,1,1,c\n", "path,text,num_frames,height,width,text\n"))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1....")
    with pytest.raises(ManifestError, match="not a readable parquet"):
        read_manifest(tmp_path / "cut.parquet")


def test_parquet_and_csv_of_the_same_rows_are_the_same_data(tmp_path):
    count = 2000
    columns = {
        "path": [f"v/{index}.mp4" for index in range(count)],
        "text": [f"clip {index}, größer" for index in range(count)],
        "num_frames": [index % 300 + 1 for index in range(count)],
        "height": [360] * count,
        "width": [640] * count,
        "score": [index / 7 for index in range(count)],
    }
    pq.write_table(pa.table(columns), tmp_path / "clips.parquet")
    lines = (",".join(f'"{value}"' for value in row) for row in zip(*columns.values(), strict=True))
    path = write(tmp_path, "\n".join(lines), ",".join(columns) + "\n")
    one, two = read_manifest(path), read_manifest(tmp_path / "clips.parquet")
    assert one.fingerprint == two.fingerprint
    assert list(one.paths) == list(two.paths)
    assert two.texts[-1] == one.texts[-1]
    assert one.marks(100) == two.marks(100)


def test_parquet_nulls_and_wrong_numbers_are_listed_by_row(tmp_path):
    table = pa.table(
        {
            "path": ["a", None, "c"],
            "text": ["x", "y", None],
            "num_frames": pa.array([51, 51, 51]),
            "height": pa.array([360.0, 1.0, None]),
            "width": ["640", "640", "640"],
        }
    )
    pq.write_table(table, tmp_path / "clips.parquet")
    manifest = read_manifest(tmp_path / "clips.parquet")
    assert list(manifest.paths) == ["a"]
    assert [(row.line, row.reason.split()[0]) for row in manifest.wrong] == [
        (2, "path"),
        (3, "height"),
    ]


@pytest.mark.parametrize("column", ["path", "text", "num_frames", "height", "width"])
def test_any_change_of_a_row_changes_the_fingerprint(tmp_path, column):
    names = HEADER.strip().split(",")
    row = dict(zip(names, ["a.mp4", "x", "51", "360", "640", "24", "1"], strict=True))
    before = read_manifest(write(tmp_path, ",".join(row.values()))).fingerprint
    row[column] += "1"
    assert read_manifest(write(tmp_path, ",".join(row.values()))).fingerprint != before


def test_fingerprint_knows_where_cells_end_and_the_order_of_rows(tmp_path):
    def of(*rows: str) -> str:
        return read_manifest(write(tmp_path, "\n".join(rows))).fingerprint

    tail = ",51,360,640,24,1"
    assert of("ab,c" + tail) != of("a,bc" + tail)
    assert of("a,x" + tail, "b,x" + tail) != of("b,x" + tail, "a,x" + tail)
    assert of("a,x" + tail) == of(
        "a,x,51,360,640,30,2"
    )  # fps and other columns do not decide order


@pytest.mark.long
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=400))
def test_no_bytes_make_the_reader_fail_in_another_way(tmp_path, data):
    for name in ("fuzz.csv", "fuzz.parquet"):
        path = tmp_path / name
        path.write_bytes(HEADER.encode() + data if name == "fuzz.csv" else b"PAR1" + data + b"PAR1")
        with contextlib.suppress(ManifestError):  # any other error fails the test
            manifest = read_manifest(path)
            assert len(manifest.fingerprint) == 64
            assert (manifest.num_frames >= 1).all()


def rows_with_a_quote(at: int, quoted: tuple[int, ...] = (), rows: int = 96) -> str:
    """Rows of which number `at` opens a quote and never closes it; captions of `quoted` have both."""
    lines = []
    for row in range(rows):
        text = f'"clip {row}, moving"' if row in quoted else f"clip {row}"
        text = f'"clip {row}' if row == at else text
        lines.append(f"v/{row}.mp4,{text},51,360,640,24,1\n")
    return "".join(lines)


@pytest.mark.parametrize("quoted", [(), (20,), (20, 21), (6, 50), (95,)])
def test_a_quote_that_is_never_closed_is_named_with_every_line_it_swallows(tmp_path, quoted):
    path = write(tmp_path, rows_with_a_quote(5, quoted))
    manifest = read_manifest(path)
    end = quoted[0] if quoted else 95  # the next quote ends it
    assert [wrong.line for wrong in manifest.wrong] == [row + 2 for row in range(5, end + 1)]
    assert manifest.wrong[0].reason == f"opens a quote that is not closed by line {end + 2}"
    assert manifest.wrong[1].reason == "belongs to the quote that line 7 opens"
    assert list(manifest.paths) == [f"v/{row}.mp4" for row in range(96) if not 5 <= row <= end]
    with pytest.raises(ManifestError, match=rf"{end - 4} rows had to .*\n  line 7: opens a quote"):
        read_manifest(path, max_wrong_rows=0)


def test_a_quote_that_swallows_more_than_a_cell_may_hold_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.data.manifest.table_io.FIELD_LIMIT", 500)
    manifest = read_manifest(write(tmp_path, rows_with_a_quote(5)))
    csv.field_size_limit(1 << 24)
    assert manifest.wrong[0].line == 7
    assert "opens a quote that is not closed by line" in manifest.wrong[0].reason
    assert len(manifest) + len(manifest.wrong) == 96


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"two\nlines"', "two\nlines"),
        ('"a ""quote"", and\n""another"""', 'a "quote", and\n"another"'),
        ('5" screen', '5" screen'),
        ('"quoted" and more', "quoted and more"),
        ('""', ""),
    ],
)
def test_quotes_that_hurt_no_other_row_are_read_as_before(tmp_path, cell, text):
    body = f"a.mp4,{cell},51,360,640,24,1\nb.mp4,x,51,360,640,24,1\n"
    manifest = read_manifest(write(tmp_path, body))
    assert list(manifest.texts) == [text, "x"]
    assert manifest.wrong == ()


def test_one_line_with_a_quote_of_each_kind_takes_no_other_row_along(tmp_path):
    body = 'a.mp4,"one" more,51,360,640,24,"1\nb.mp4,x,51,360,640,24,1\n'
    manifest = read_manifest(write(tmp_path, body))
    assert [(wrong.line, wrong.reason) for wrong in manifest.wrong] == [
        (2, "opens a quote that is not closed by line 2")
    ]
    assert list(manifest.paths) == ["b.mp4"]


def test_a_header_with_an_open_quote_says_so(tmp_path):
    path = write(tmp_path, "a.mp4,x,51,360,640,24,1\n", 'path,"text,num_frames,height,width\n')
    with pytest.raises(ManifestError, match=r"line 1 opens a quote that is not closed by line 2"):
        read_manifest(path)
