"""Places in the nodes' files after a supervisor was killed: every part of a copy is there once."""

from __future__ import annotations

from pathlib import Path

from clusterctl.launch import positions


def test_copy_is_cut_to_what_was_noted(tmp_path: Path) -> None:
    """A supervisor notes, copies and is killed between any two steps."""
    (tmp_path / "ranks").mkdir()
    copy, source = tmp_path / "ranks/3.log", b"".join(b"line %d\n" % n for n in range(200))
    for killed_after in range(1, 12):
        copy.unlink(missing_ok=True)
        positions.remove(tmp_path)
        notes, at = positions.Notes(tmp_path), 0
        for part in range(killed_after):
            notes.note({"n1": {"3": at}}, "ranks/3.log")
            if part % 3 == 2:
                notes._noted_s = 0.0  # a second later
            with copy.open("ab") as file:
                file.write(source[at : at + 100])
            at += 100
        at = positions.load(tmp_path)["n1"]["3"]
        with copy.open("ab") as file:
            file.write(source[at:])
        assert copy.read_bytes() == source


def test_nothing_noted_is_the_beginning(tmp_path: Path) -> None:
    assert positions.load(tmp_path) == {}
    for text in (
        "",
        "{",
        "[]",
        '{"positions": {"n": 1}}',
        '{"positions": {}, "sizes": {"../x": 0}}',
    ):
        (tmp_path / positions.FILE).write_text(text)
        assert positions.load(tmp_path) == {}
