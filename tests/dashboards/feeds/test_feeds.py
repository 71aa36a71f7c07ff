from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboards.feeds.replay import ReplayFeed
from dashboards.feeds.run_dir import RunDirFeed, Together, newest_run
from dashboards.model.samples import READING, EventSample, RunOpened, RunRead, Sample, StepSample
from dashboards.simulation.cluster import DemoFeed
from tests.dashboards.runs import BEGAN, FixedFeed, journal, record, unreadable, write_run
from trainer.runlog import run_files
from trainer.runlog.telemetry import Writer


def steps(samples: list[Sample]) -> list[int]:
    return [sample.record.step for sample in samples if isinstance(sample, StepSample)]


def until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def test_run_directory_is_opened_read_and_followed(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=10)
    feed = RunDirFeed(run_dir, clock=lambda: 50.0)
    first = feed.poll()
    assert first[0] == RunOpened(str(run_dir), "001-x", 50.0, ("demo-0", "demo-1"), (1, 1))
    assert first[1] == RunRead(50.0, READING)
    assert first[-1] == RunRead(50.0)
    assert steps(first) == list(range(1, 11))
    assert [s.event.name for s in first if isinstance(s, EventSample)] == ["start"]
    assert feed.poll() == []
    writer = Writer(run_dir)
    writer.write(record(11))
    writer.close()
    assert steps(feed.poll()) == [11]


def test_records_that_lay_there_are_as_old_as_the_file(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=3)
    old = time.time() - 100
    os.utime(run_dir / "telemetry.jsonl", (old, old))
    samples = RunDirFeed(run_dir, clock=lambda: 5000.0).poll()
    ages = [sample.at_s for sample in samples if isinstance(sample, StepSample)]
    assert ages == pytest.approx([4900.0] * 3, abs=5)


def test_file_that_cannot_be_read_is_said_once_and_read_when_it_can(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=3)
    file = run_dir / "telemetry.jsonl"
    feed = RunDirFeed(run_dir, clock=lambda: 50.0)
    assert steps(feed.poll()) == [1, 2, 3]
    with unreadable(file):
        assert feed.poll() == [RunRead(50.0, f"{file}: it is a folder, no plain file")]
        assert feed.poll() == []
    assert feed.poll() == [RunRead(50.0)]


def test_thread_survives_an_error_of_the_file_system(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=3)
    feed = RunDirFeed(run_dir, clock=time.time, interval_s=0.01)
    seen: list[Sample] = []

    def so_far() -> list[Sample]:
        seen.extend(feed.drain())
        return seen

    def fails() -> bool:
        return any(isinstance(one, RunRead) and "is a folder" in one.why_not for one in so_far())

    with unreadable(run_dir / "telemetry.jsonl"):
        feed.start()
        until(fails)
    until(lambda: steps(so_far()) == [1, 2, 3])
    feed.close()


def test_file_system_that_hangs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirFeed, "HUNG_S", 0.2)
    run_dir = write_run(tmp_path / "001-x", steps=3)
    answers, opened = threading.Event(), run_files.opened

    def slow(path: Path, *more: Any) -> Any:
        if path.name == "events.jsonl":
            answers.wait(10.0)
        return opened(path, *more)

    monkeypatch.setattr(run_files, "opened", slow)
    feed = RunDirFeed(run_dir, clock=time.time, interval_s=0.01)
    feed.start()
    seen: list[Sample] = []

    def said() -> list[str]:
        seen.extend(feed.drain())
        return [sample.why_not for sample in seen if isinstance(sample, RunRead)]

    hung = f"no answer from the file system for 0.2 s: {run_dir}"
    until(lambda: said() == [READING, READING, hung])
    assert not feed.settled()
    assert steps(seen) == [1, 2, 3]
    answers.set()
    until(lambda: said()[3:] != [])
    feed.close()


def test_given_run_is_known_before_the_first_look_at_its_files(tmp_path: Path) -> None:
    feed = RunDirFeed(tmp_path / "001-x", clock=lambda: 50.0)
    feed._thread = threading.Thread(target=lambda: None)  # that look has not come yet
    feed.start()
    assert feed.drain() == [
        RunOpened(str(tmp_path / "001-x"), "001-x", 50.0),
        RunRead(50.0, READING),
    ]


def test_newest_run_is_followed_when_another_one_starts(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    feed = RunDirFeed(tmp_path, clock=lambda: 50.0, newest_below=True)
    assert feed.poll() == []
    first = write_run(tmp_path / "001-x", steps=2)
    os.utime(first / "telemetry.jsonl", (1, 1))
    assert steps(feed.poll()) == [1, 2]
    write_run(tmp_path / "002-x", steps=3)
    second = feed.poll()
    assert isinstance(second[0], RunOpened)
    assert (second[0].name, steps(second)) == ("002-x", [1, 2, 3])


def test_torn_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=2)
    with (run_dir / "telemetry.jsonl").open("a") as file:
        file.write('not json\n{"kind":"other"}\n[1]\n{"kind":"step","st')
    with (run_dir / "events.jsonl").open("a") as file:
        file.write('not json\n{"event": 3}\n[]\n')
    assert steps(RunDirFeed(run_dir, clock=lambda: 0.0).poll()) == [1, 2]


def test_thread_hands_over_and_ends(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=5)
    feed = RunDirFeed(run_dir, clock=time.time, interval_s=0.01)
    feed.start()
    until(feed.settled)
    assert steps(feed.drain()) == [1, 2, 3, 4, 5]
    feed.close()
    assert not feed._thread.is_alive()


def test_replay_goes_by_the_runs_own_time(tmp_path: Path) -> None:
    now = [0.0]
    run_dir = write_run(tmp_path / "001-x", steps=100)
    journal(run_dir, "finished", "all steps done", BEGAN + 40, node="demo-1")
    feed = ReplayFeed(run_dir, clock=lambda: now[0], speed=10.0)
    feed.start()
    assert isinstance(feed.drain()[0], RunOpened)
    now[0] = 1.0  # ten seconds of the run: start at 0, the first step 4.3 s after it
    assert steps(feed.drain()) == list(range(1, 20))
    assert feed.now() == pytest.approx(BEGAN + 10, abs=0.01)
    now[0] = 100.0
    rest = feed.drain()
    assert steps(rest) == list(range(20, 101))
    assert isinstance(rest[-1], EventSample)
    assert rest[-1].event.data == {"node": "demo-1", "mono_s": 1.0}
    assert feed.now() == BEGAN + 40


def test_replay_can_be_paused_sped_up_and_sought(tmp_path: Path) -> None:
    now = [0.0]
    feed = ReplayFeed(write_run(tmp_path / "001-x", steps=100), clock=lambda: now[0], speed=10.0)
    feed.start()
    feed.drain()
    feed.pause()
    now[0] = 5.0
    assert steps(feed.drain()) == []
    feed.pause()
    feed.faster(2.0)
    now[0] = 5.5
    assert steps(feed.drain()) == list(range(1, 20))
    feed.seek_to(feed.now() - 5.0)
    again = feed.drain()
    assert isinstance(again[0], RunOpened)  # back means from the beginning
    assert steps(again) == list(range(1, 4))
    feed.seek_end()
    assert steps(feed.drain())[-1] == 100


def test_replay_of_records_without_times_uses_their_durations(tmp_path: Path) -> None:
    run_dir = tmp_path / "001-x"
    run_dir.mkdir()
    writer = Writer(run_dir)
    for step in range(1, 11):
        writer.write(record(step, time_s=0.0, step_s=2.0))
    writer.close()
    feed = ReplayFeed(run_dir, clock=lambda: 0.0)
    feed.start()
    assert 15 < feed.last_s - feed.first_s < 21


def test_run_that_failed_before_its_first_step_can_be_replayed(tmp_path: Path) -> None:
    run_dir = tmp_path / "001-x"
    run_dir.mkdir()
    journal(run_dir, "failure", "demo-1: disk full", BEGAN + 1)
    feed = ReplayFeed(run_dir, clock=lambda: 0.0)
    feed.start()
    feed.seek_end()
    assert [s.event.name for s in feed.drain() if isinstance(s, EventSample)] == ["failure"]


def test_several_feeds_are_one() -> None:
    first = FixedFeed(["a", "b"], [], 7.0)
    second = FixedFeed(["b", "c"], [RunOpened("d", "x", 1.0)], 9.0)
    feed = Together([first, second])
    assert (feed.nodes, feed.now(), len(feed.drain())) == (("a", "b", "c"), 7.0, 1)
    feed.close()
    assert first.closed
    assert second.closed


@pytest.mark.long
def test_demo_is_the_same_for_the_same_clock_and_goes_on_with_it() -> None:
    now = [1000000.0]
    feeds = [DemoFeed(clock=lambda: now[0], nodes=18, gpus=1) for _ in range(2)]
    for feed in feeds:
        feed.start()
    assert feeds[0].drain() == feeds[1].drain()
    now[0] += 3
    later = feeds[0].drain()
    assert 3 * 16 <= len(later) <= 3 * 18 + 4


def test_any_error_of_the_reading_thread_is_said_at_once_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = write_run(tmp_path / "001-x", steps=3)

    def fails(record: object, at_s: float, source: str) -> Sample:
        raise ArithmeticError("no\nsuch number")

    monkeypatch.setattr("dashboards.feeds.run_dir.as_sample", fails)
    feed = RunDirFeed(run_dir, clock=lambda: 50.0, interval_s=0.01)
    feed.start()
    until(feed.settled)
    monkeypatch.undo()
    why = f"{run_dir}: clusterctl failed while it read it (ArithmeticError: no such number)"
    assert feed.drain()[-1] == RunRead(50.0, why)
    feed.close()
    assert feed.poll() == []
