"""Whatever a verb leaves out, cuts or cannot match it says, with a number and the first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.data.features.feature_caches import Place, make_place
from tests.trainer.data.tables import rows_of
from trainer.data.__main__ import VERBS, main

HEADER = "path,text,num_frames,height,width,fps\n"
GOOD = "".join(f"{n}.mp4,clip number {n},{f},32,40,24\n" for n, f in enumerate((70, 60, 41, 36)))
# Line 6 opens a quote that takes lines 7 and 8 along.
WRONG = '4.mp4,"clip four,25,32,40,24\n5.mp4,clip five,19,32,40,24\n6.mp4,"six",19,32,40,24\n'
WRONG += "7.mp4,too,few\n"
# verb -> words behind it; m.csv has the wrong rows, g.csv only good ones
COMMANDS = {
    "probe": "m.csv o.csv --workers 1 -q",
    "check": "m.csv o.csv --workers 1 -q",
    "filter": "m.csv o.csv --min-frames 1 -q",
    "merge": "m.csv g.csv o.csv -q",
    "difference": "m.csv g.csv o.csv -q",
    "intersect": "m.csv g.csv o.csv -q",
    "dedupe": "m.csv o.csv -q",
    "clean-captions": "m.csv o.csv --workers 1 -q",
    "convert": "m.csv o.parquet -q",
    "shard": "m.csv o.shards -q",
    "stats": "m.csv -q",
    "encode": "config.py o -q --data-path m.csv",
    "simulate": "m.csv config.py --ranks 1 --windows 1",
}
OF_NO_MANIFEST = {"features", "examine"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = make_place(tmp_path_factory.mktemp("place"), identity=True)
    (place.folder / "m.csv").write_text(HEADER + GOOD + WRONG)
    (place.folder / "g.csv").write_text(HEADER + GOOD)
    return place


@pytest.fixture(autouse=True)
def there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)


@pytest.mark.long
@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_says_which_rows_it_left_out(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = COMMANDS[verb].split()
    words = [str(tmp_path / word) if word[:2] == "o." or word == "o" else word for word in words]
    assert main([verb, *words]) == 1
    said = capsys.readouterr().err
    assert "left out 4 rows\n" in said
    where = "m.csv: " if verb == "merge" else ""
    assert f"  line 6: {where}opens a quote that is not closed by line 8\n" in said
    assert f"  line 7: {where}belongs to the quote that line 6 opens\n" in said
    assert f"  line 9: {where}3 cells, the header has 6\n" in said


def test_no_verb_is_left_out_of_these_tests() -> None:
    assert {*COMMANDS} | OF_NO_MANIFEST == {*VERBS}


@pytest.mark.parametrize("verb", ["difference", "intersect", "merge"])
def test_wrong_rows_of_the_table_beside_are_named_too(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = tmp_path / "beside.csv"
    beside.write_text('path,score\n0.mp4,1\n2.mp4,"2\n3.mp4,3\n')
    words = [verb, "g.csv", str(beside), str(tmp_path / "o.csv"), "--on", "path", "-q"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "left out 2 rows\n  line 3: beside.csv: opens a quote" in said
    assert main([*words, "--force", "--max-wrong-rows", "1"]) == 2


@pytest.mark.long
def test_merge_says_what_found_no_partner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.csv").write_text(
        "path,score\n" + "".join(f"{n}.mp4,{n}\n" for n in (0, 3, 8, 9))
    )
    (tmp_path / "t.csv").write_text("path,note\n0.mp4,a\n1.mp4,b\n2.mp4,c\n3.mp4,d\n")
    words = ["merge", "g.csv", *(str(tmp_path / name) for name in ("s.csv", "t.csv", "o.csv"))]
    assert main([*words, "--on", "path", "-q"]) == 0
    said = capsys.readouterr().err
    assert "s.csv has no row for 4 of them" in said
    assert f"relative paths of s.csv start in {tmp_path}; --root FOLDER: all start there" in said
    words += ["--force", "--root", "."]
    assert main([*words, "--on", "path", "-q"]) == 0
    said = capsys.readouterr().err
    assert "s.csv has no row for 2 of them\n2 rows of s.csv without one here, left out\n" in said
    assert "t.csv" not in said
    scores = [(row["score"], row["note"]) for row in rows_of(tmp_path / "o.csv")]
    assert scores == [("0", "a"), ("", "b"), ("", "c"), ("3", "d")]


@pytest.mark.long
def test_captions_that_reach_the_limit_of_tokens_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = GOOD.replace("clip number 1", "clip number one and many other words that are cut")
    (tmp_path / "m.csv").write_text(HEADER + rows)
    words = [
        "encode",
        "config.py",
        str(tmp_path / "o"),
        "-q",
        "--data-path",
        str(tmp_path / "m.csv"),
    ]
    assert main([*words, "--dataset.root", "."]) == 0
    assert "1 fill all 8 tokens, what is longer was cut" in capsys.readouterr().out
