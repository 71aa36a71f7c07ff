"""Records that are read while they are written, and heartbeats."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.small_disk import small_disk
from trainer.runlog import steps
from trainer.runlog.telemetry import (
    CurrentClip,
    Event,
    Heartbeat,
    StepRecord,
    Tail,
    Writer,
    decode,
    encode,
    final_steps,
    newest,
    read,
)

STEP = StepRecord(
    3, 9, 1, 8, 256, 0.5, 1.25, 1e-3, 0.1, {"forward": 0.05}, bucket="16px", time_s=1.0
)


@pytest.mark.long
@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers() | st.text()))
def test_every_record_comes_back_from_one_line(name: str, text: str, data: dict[str, object]) -> None:  # fmt: skip
    event = Event(name, text, data, 3, 2.0)
    assert "\n" not in encode(event)
    assert decode(encode(event)) == event
    assert decode(encode(STEP)) == STEP


@given(st.binary(max_size=60))
def test_what_is_no_record_is_none(line: bytes) -> None:
    record = decode(line)
    assert record is None or isinstance(record, (StepRecord, Event))


@pytest.mark.parametrize("line", ["", "3", "[]", "null", '{"kind": "x"}', '{"kind": "step"}'])
def test_lines_of_other_kinds_are_passed_over(line: str) -> None:
    assert decode(line) is None


def test_keys_of_a_later_version_are_ignored() -> None:
    line = json.dumps({**json.loads(encode(STEP)), "later": 1})
    assert decode(line) == STEP


def test_a_reader_sees_only_whole_records_of_a_growing_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "telemetry.jsonl")
    assert tail.poll() == []
    writer = Writer(tmp_path)
    writer.write(STEP)
    assert tail.poll() == [STEP]
    line = encode(STEP).encode() + b"\n"
    with (tmp_path / "telemetry.jsonl").open("ab", buffering=0) as file:
        file.write(line[:20])
        assert tail.poll() == []
        file.write(line[20:] + b"{torn}\n")
    assert tail.poll() == [STEP]
    writer.write(Event("done", "well", {"path": "x"}, 3))
    writer.close()
    (event,) = tail.poll()
    assert isinstance(event, Event)
    assert (event.name, event.data) == ("done", {"path": "x"})
    assert len(list(read(tmp_path))) == 3


def test_a_full_disk_costs_lines_and_the_first_after_it_says_how_many(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        writer, filler = Writer(disk), disk / "filler"
        writer.write(STEP)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for _ in range(40):  # what is left of the file's last page, then a torn line, then nothing
            writer.write(STEP)
        assert 0 < writer.lost < 40
        kept = len(list(read(disk)))
        assert kept == 41 - writer.lost
        filler.unlink()
        lost = writer.lost
        writer.write(Event("done", "well"))
        *steps, gap, done = read(disk)
        assert steps == [STEP] * kept
        assert isinstance(gap, Event)
        assert (gap.name, gap.data) == ("lost", {"lines": lost})
        assert gap.text.startswith(f"{lost} lines before this one could not be written: ")
        assert isinstance(done, Event)
        assert done.name == "done"
        assert writer.lost == 0
        writer.close()


def test_a_full_folder_of_heartbeats_ends_nobody_and_the_beat_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "64k,nr_inodes=4") as disk:
        monkeypatch.setenv("CLUSTERCTL_HEARTBEATS", str(disk))
        heartbeat, clip = Heartbeat(disk / "0.json", 0), CurrentClip.from_environment()
        assert clip is not None
        heartbeat.beat("data", 1)
        (disk / "more").write_text("x")
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(1 << 16))
        clip.write("/data/a.mp4")
        heartbeat.beat("forward", 2)  # there is no room for a second file
        beat = json.loads((disk / "0.json").read_text())
        assert (beat["phase"], beat["step"]) == ("forward", 2)
        Heartbeat(disk / "0.json" / "not" / "a" / "folder", 1).beat("data", 1)


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_text((encode(STEP) + "\n") * 3)
    tail = Tail(path)
    assert len(tail.poll()) == 3
    path.write_text(encode(STEP) + "\n")
    assert tail.poll() == [STEP]


def test_a_heartbeat_tells_step_and_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERCTL_HEARTBEATS", raising=False)
    assert Heartbeat.from_environment(1) is None
    monkeypatch.setenv("CLUSTERCTL_HEARTBEATS", str(tmp_path / "beats"))
    heartbeat = Heartbeat.from_environment(1)
    assert heartbeat is not None
    heartbeat.beat("data", 7)
    heartbeat.beat("forward", 7)
    beat = json.loads((tmp_path / "beats" / "1.json").read_text())
    assert (beat["rank"], beat["pid"], beat["step"], beat["phase"]) == (1, os.getpid(), 7, "forward")  # fmt: skip
    assert [p.name for p in (tmp_path / "beats").iterdir()] == ["1.json"]


def test_the_clip_at_hand_is_told_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLUSTERCTL_HEARTBEATS", raising=False)
    assert CurrentClip.from_environment() is None
    monkeypatch.setenv("CLUSTERCTL_HEARTBEATS", str(tmp_path))
    current = CurrentClip.from_environment()
    assert current is not None
    file = tmp_path / f"clip-{os.getpid()}.json"
    current.write("/data/" + "long" * 50 + ".mp4")
    assert json.loads(file.read_text())["path"].endswith("longlong.mp4")
    current.write("")
    assert json.loads(file.read_text())["path"] == ""
    monkeypatch.setenv("CLUSTERCTL_HEARTBEATS", str(tmp_path / "not-there"))
    assert CurrentClip.from_environment() is None


def test_final_steps_are_the_last_ones_up_to_where_the_run_has_come() -> None:
    def step(number: int, loss: float) -> StepRecord:
        return StepRecord(number, 9, 0, 8, 64, loss, 1.0, 1e-3, 0.1)

    first = [step(number, 1.0) for number in range(1, 7)]
    assert list(final_steps(first)) == [1, 2, 3, 4, 5, 6]
    begun = [*first, Event("start", "again", {}, 3)]
    assert list(final_steps(begun)) == [1, 2, 3]
    again = final_steps([*begun, step(4, 2.0)])
    assert [one.loss for one in again.values()] == [1.0, 1.0, 1.0, 2.0]
    assert list(final_steps([*first, step(2, 2.0)])) == [1, 2]  # of a version without starts
    assert final_steps([Event("start", "x", {}, 0)]) == {}


def test_newest_step_and_checkpoint_are_read_without_the_other_lines(tmp_path: Path) -> None:
    assert newest(tmp_path) == (None, None)
    writer = Writer(tmp_path)
    first, second = Event("checkpoint", data={"path": "a"}), Event("checkpoint", data={"path": "b"})
    for record in (STEP, first, second, Event("note", "a checkpoint"), STEP):
        writer.write(record)
    writer.close()
    with (tmp_path / "telemetry.jsonl").open("ab") as file:
        file.write(encode(first).encode())  # not whole yet
    assert newest(tmp_path) == (STEP, second)


@pytest.mark.long
def test_file_of_weeks_is_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines lie across the ends of pieces; memory is that of a piece."""
    monkeypatch.setattr("trainer.runlog.run_files.PIECE_BYTES", 1 << 12)
    events = [Event("note", "x" * (number % 777), step=number) for number in range(3000)]
    writer = Writer(tmp_path)
    for event in events:
        writer.write(event)
    writer.close()
    tail = Tail(tmp_path / "telemetry.jsonl")
    tracemalloc.start()
    try:
        assert all(one == event for one, event in zip(tail.records(), events, strict=True))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "telemetry.jsonl").stat().st_size > 1 << 20 > 4 * peak_bytes
    assert tail.poll() == []


@pytest.mark.parametrize("step_s", ["-1.5", "1e308", "NaN", "Infinity", "-Infinity"])
def test_a_step_that_takes_no_possible_time_is_no_record(step_s: str) -> None:
    """Anybody may have written the line: figures of it would be shown as those of the run."""
    good = encode(STEP)
    line = re.sub(r'"step_s":[^,]+', f'"step_s":{step_s}', good)
    assert decode(good) is not None
    assert decode(line) is None
    assert steps.after_line(steps.Steps(), line.encode()) == steps.Steps()
    assert steps.after_line(steps.Steps(), good.encode()).last is not None
