"""What the head adds to files while there is no room for it, and after."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.launch import positions
from clusterctl.launch.causes.kinds import Cause, Kind
from clusterctl.launch.incidents import Incident, record
from clusterctl.launch.journal import EVENTS_FILE, INCIDENTS_FILE, Copies, Journal
from clusterctl.launch.node_reports import Reports
from clusterctl.launch.root_cause import Judgement
from clusterctl.launch.state import NodeState, RunState
from clusterctl.remote.inbox import NodeMessage
from clusterctl.runs import appended
from clusterctl.runs.appended import Appended
from tests.clusterctl.launch.test_saved_run import saved


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: the last write before is cut, as on a disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_whole_and_in_order_after_a_disk_was_full(tmp_path: Path) -> None:
    files = Appended(tmp_path)
    lines = [b"%04d\n" % number for number in range(100)]
    with no_room_beyond(123):  # in the middle of a line
        told = [files.add("a", line) for line in lines[:60]]
        assert files.is_behind
        assert (tmp_path / "a").stat().st_size == 123
    assert [text for text in told if text] == ["File too large"]
    assert files.add("b", b"other\n") == ""
    assert not files.is_behind  # also of a file to which nothing was added
    for line in lines[60:]:
        assert files.add("a", line) == ""
    assert (tmp_path / "a").read_bytes() == b"".join(lines)


def test_what_is_too_much_to_keep_is_left_out_whole_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appended, "KEPT_BYTES", 50)
    journal = Journal(tmp_path)
    with no_room_beyond(0):
        for number in range(20):
            journal.add("log", b"%04d\n" % number)
    journal.add("log", b"after\n")
    journal.write("step", "there is room")
    kept = (tmp_path / "log").read_text().split()
    assert kept == [*(f"{number:04}" for number in range(len(kept) - 1)), "after"]
    events = [json.loads(line) for line in (tmp_path / EVENTS_FILE).read_text().splitlines()]
    left_out = 5 * (20 - (len(kept) - 1))
    assert f"log: {left_out} bytes are left out" in events[-1]["text"]


def test_incident_and_logs_are_on_record_after_the_heads_disk_was_full(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    copies = Copies(tmp_path, journal)
    (tmp_path / "ranks").mkdir()
    with no_room_beyond(0):
        journal.write("failure", "rank 1 ended")
        record(journal, Incident("x", Judgement(Cause(Kind.SIGNAL, "9", "n2", 1)), "restart"))
        copies.append("ranks/1.log", "last words\n", "n2")
        assert journal.is_behind
    journal.write("attempt", "attempt 2")
    names = [json.loads(one)["event"] for one in (tmp_path / EVENTS_FILE).read_text().splitlines()]
    assert [name for name in names if name != "error"] == ["failure", "incident", "attempt"]
    assert names.count("error") == 2  # one for each other file
    assert json.loads((tmp_path / INCIDENTS_FILE).read_text())["class"] == "signal-9"
    assert (tmp_path / "ranks/1.log").read_text() == "last words\n"


def test_end_of_a_run_waits_for_room_and_says_what_is_missing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with no_room_beyond(0):
        journal.write("end", "all ranks have ended well")
        assert journal.settle(0.0) == f"{EVENTS_FILE}: File too large"
    assert journal.settle(0.0) == ""
    assert "all ranks have ended well" in (tmp_path / EVENTS_FILE).read_text()


def test_supervisor_that_follows_gets_again_what_its_head_could_not_write(tmp_path: Path) -> None:
    """Killed when the disk has room again, before anything was written there."""
    plan = saved(tmp_path).plan
    (tmp_path / "ranks").mkdir()
    name, rank = plan.shares[0].node.name, plan.shares[0].first_rank
    state = RunState()
    state.nodes = {share.node.name: NodeState(shared=False) for share in plan.shares}
    reports = Reports(plan, state, Journal(tmp_path))

    def say(at: int, text: str) -> None:
        part = {"type": "log", "rank": rank, "text": text, "at": at, "end": at + len(text)}
        reports.take(NodeMessage(name, part))

    say(0, "first\n")
    with no_room_beyond(6):
        say(6, "second\n")
    reports.copies.append = lambda *_: None  # type: ignore[method-assign]
    reports.notes._noted_s = 0.0  # a second later
    say(13, "third\n")
    at = positions.load(tmp_path)[name].get(str(rank), 0)  # cuts the copy to what was noted
    assert at == (tmp_path / f"ranks/{rank}.log").stat().st_size
