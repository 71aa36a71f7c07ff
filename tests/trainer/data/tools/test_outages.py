"""Storage that is away: clips are waited for, none is called bad, and a command goes on afterwards."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.trainer.data.clips import write_clip
from tests.trainer.data.tables import rows_of
from trainer.data.video import outage
from trainer.data.video.decode import Decoder
from trainer.data.video.decoder_pool import DecoderPool, Try
from trainer.data.video.outage import Outage

CLIPS = 140


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A folder of clips, and `clips.csv` beside it."""
    folder = tmp_path / "mount"
    folder.mkdir()
    clip = write_clip(folder / "0.mp4", 5, threads="1", preset="ultrafast")
    rows = []
    for number in range(CLIPS):
        if number:
            (folder / f"{number}.mp4").hardlink_to(clip)
        rows.append([f"mount/{number}.mp4", f"clip {number}"])
    with (tmp_path / "clips.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "text"], *rows])
    return folder


@pytest.fixture
def away(mount: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """`away(20)`: the folder goes with the 20th question."""
    moved, asked, real = mount.with_name("moved"), [0, 0], Decoder.ask

    def ask(self, question):
        asked[0] += 1
        if asked[0] == asked[1]:
            mount.rename(moved)
        return real(self, question)

    monkeypatch.setattr(Decoder, "ask", ask)

    def at(number: int) -> None:
        asked[:] = [0, number]

    yield at
    if moved.exists():
        moved.rename(mount)


ONE, BOTH = (
    pytest.mark.parametrize("verb", ["probe", pytest.param("check", marks=marks)])
    for marks in ([pytest.mark.slow], [])
)


@pytest.mark.long
@BOTH
def test_a_short_outage_makes_no_clip_bad(mount, do, away, monkeypatch, verb):
    assert do(f"{verb} clips.csv want.csv --workers 2 -q") == 0
    real = Outage.lasts

    def lasts(self, was_read):
        moved = mount.with_name("moved")
        with suppress(FileNotFoundError):
            moved.rename(mount)  # it comes back while the first clip waits for it
        return real(self, was_read)

    monkeypatch.setattr(Outage, "lasts", lasts)
    away(20)
    assert do(f"{verb} clips.csv out.csv --workers 2 -q") == 0
    assert (mount.parent / "out.csv").read_bytes() == (mount.parent / "want.csv").read_bytes()


@pytest.mark.long
@ONE
def test_a_long_outage_ends_the_command_and_the_same_one_goes_on(
    mount, do, away, monkeypatch, capsys, verb
):
    assert do(f"{verb} clips.csv want.csv --workers 2 -q") == 0
    monkeypatch.setattr(outage, "LONG_OUT_S", 0.3)
    away(100)
    assert do(f"{verb} clips.csv out.csv --workers 2 -q --max-wrong-rows 0") == 1
    said = capsys.readouterr().err
    assert "the storage fails, waiting for it up to 0.3 s" in said
    assert "no clip could be read for 0.3 s" in said
    assert "run the same command again to continue" in said
    mount.with_name("moved").rename(mount)
    assert do(f"{verb} clips.csv out.csv --workers 2 -q --max-wrong-rows 0") == 0
    assert (mount.parent / "out.csv").read_bytes() == (mount.parent / "want.csv").read_bytes()


@pytest.mark.long
@ONE
def test_a_folder_that_was_not_there_is_asked_for_again(mount, do, capsys, verb):
    """A mount that was forgotten: nothing has been read, so nothing is waited for."""
    assert do(f"{verb} clips.csv want.csv --workers 1 -q") == 0
    mount.rename(mount.with_name("moved"))
    words = f"{verb} clips.csv out.csv --workers 1 --max-wrong-rows 30"
    assert do(words) == 2
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert f"looked for in {mount.parent}: --root FOLDER names another" in said
    assert do(words) == 2  # still not there
    mount.with_name("moved").rename(mount)
    capsys.readouterr()
    assert do(words) == 0
    assert "that failed are asked for again" in capsys.readouterr().err
    assert (mount.parent / "out.csv").read_bytes() == (mount.parent / "want.csv").read_bytes()


@pytest.mark.long
def test_a_clip_that_is_not_there_is_a_result_of_check_without_a_limit(mount, do):
    for number in range(1, CLIPS):
        (mount / f"{number}.mp4").unlink()
    assert do("check clips.csv out.csv --workers 1 -q --max-wrong-rows 5") == 1
    found = [row["check"] for row in rows_of(mount.parent / "out.csv")]
    assert found == ["ok", *["No such file or directory"] * (CLIPS - 1)]


@pytest.mark.long
def test_one_file_that_the_disk_cannot_read_is_told_from_an_outage(mount, monkeypatch):
    monkeypatch.setattr(outage, "ALIVE_S", 0.3)
    pool = DecoderPool(1, 20.0, "test")
    good, tries = str(mount / "0.mp4"), []

    def read_good(decoder):
        return pool.until_read(decoder, good, lambda: "", lambda error: Try(error, False, ""))

    def read_bad(decoder):
        def read() -> str:
            tries.append(1)
            return "Input/output error"

        return pool.until_read(decoder, "/x", read, lambda error: Try(error, True, ""))

    try:
        assert pool.submit(read_bad).result(60) == "Input/output error"  # nothing read before
        assert pool.submit(read_good).result(60) == ""
        assert pool.submit(read_bad).result(60) == "Input/output error"
        assert len(tries) > 3
    finally:
        pool.close()
