"""Places in the nodes' files after a supervisor was killed: every part of a copy is there once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

from clusterctl.launch import positions
from clusterctl.launch.head import supervisor
from clusterctl.launch.restart.past import Past


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
        '{"positions": {"n": {"0": 1e400}}, "sizes": {}}',
        '{"positions": {}, "sizes": {"telemetry.jsonl": 1e400}}',
    ):
        (tmp_path / positions.FILE).write_text(text)
        assert positions.load(tmp_path) == {}


def test_no_link_leads_to_what_is_cut_or_replaced(tmp_path: Path) -> None:
    """Of the file of positions, of a copy, and of the folder of copies."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    mine.mkdir()
    for name in ("0.log", "positions"):
        (mine / name).write_text("mine\n")
    said = {"positions": {"n1": {"0": 1}}, "sizes": {"ranks/0.log": 1, "telemetry.jsonl": 1}}

    def made(ranks: str) -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / positions.FILE).write_text(json.dumps(said))
        (run / "telemetry.jsonl").symlink_to(mine / "0.log")
        if ranks == "linked":
            (run / "ranks").symlink_to(mine)
        else:
            (run / "ranks").mkdir()
            (run / "ranks/0.log").symlink_to(mine / "0.log")

    for ranks in ("linked", "with a link"):
        made(ranks)
        assert positions.load(run) == {}
        (run / positions.FILE).unlink()
        (run / positions.FILE).symlink_to(mine / "positions")
        assert positions.load(run) == {}
        positions.Notes(run).note({"n1": {"0": 1}}, "ranks/0.log")
        assert not (run / positions.FILE).is_symlink()
    for name in ("0.log", "positions"):
        assert (mine / name).read_text() == "mine\n"


def test_copy_is_never_made_longer_and_no_link_to_it_is_followed(tmp_path: Path) -> None:
    """What is noted lies in the run directory, into which others may write."""
    copy, mine = tmp_path / "telemetry.jsonl", tmp_path / "mine"
    mine.write_text("precious")
    for size in (1 << 40, 0):
        (tmp_path / positions.FILE).write_text(
            f'{{"positions": {{}}, "sizes": {{"{copy.name}": {size}}}}}'
        )
        copy.write_text("one line\n")
        assert positions.load(tmp_path) == {}
        assert copy.read_text() == ("one line\n" if size else "")
    copy.unlink()
    copy.symlink_to(mine)
    positions.load(tmp_path)
    assert mine.read_text() == "precious"


def test_copies_are_cut_only_where_agents_send_the_rest_again(tmp_path: Path) -> None:
    """Between two attempts nobody has it any more."""
    copy = tmp_path / "telemetry.jsonl"
    for phase, left in (("between", 19), ("starting", 19), ("running", 18)):
        copy.write_text("x\n" * 18)
        positions.Notes(tmp_path).note({"n1": {"telemetry": 36}}, "telemetry.jsonl")
        with copy.open("a") as file:
            file.write("x\n")
        run = SimpleNamespace(phase=phase, plan=SimpleNamespace(run_dir=tmp_path), past=Past())
        supervisor._past(run)  # type: ignore[arg-type]
        assert copy.read_text().count("\n") == left
