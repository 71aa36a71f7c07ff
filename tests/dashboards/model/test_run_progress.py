from __future__ import annotations

import pytest

from dashboards.model.run_progress import Figures, figures, is_bad, mfu, one_line
from dashboards.model.samples import EventSample, RunOpened, Sample, StepSample
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.dashboards.runs import record
from trainer.runlog.telemetry import Event


def run_of(*samples: Sample, now_s: float) -> Figures:
    state = fold(initial_state([], now_s=0.0), [RunOpened("d", "001-x", 0.0), *samples])
    assert state.run is not None
    return figures(state.run, now_s)


def steps(first: int, last: int, **fields: object) -> list[Sample]:
    records = [record(step, **fields) for step in range(first, last + 1)]  # type: ignore[arg-type]
    return [StepSample(one, one.time_s) for one in records]


def test_run_without_a_step_is_waiting() -> None:
    assert run_of(now_s=5.0).status == "waiting"


def test_eta_counts_what_stands_between_steps_too() -> None:
    last = record(100)
    now = run_of(*steps(1, 100), now_s=last.time_s)
    # Records come every 0.30 s although a step takes 0.29: that is the pace.
    assert now.eta_s is not None
    assert abs(now.eta_s - 800 * 0.3) < 1.0
    assert now.clips_per_s is not None
    assert abs(now.clips_per_s - 16 / 0.3) < 0.5


def test_eta_falls_while_no_step_comes() -> None:
    last = record(100)
    later = run_of(*steps(1, 100), now_s=last.time_s + 10)
    assert later.eta_s is not None
    assert abs(later.eta_s - (800 * 0.3 - 10)) < 1.0


def test_records_without_times_go_by_their_durations() -> None:
    now = run_of(*steps(1, 50, time_s=0.0), now_s=1.0)
    assert now.eta_s is not None
    assert abs(now.eta_s - 850 * 0.29) < 5


def test_silence_is_stalled_only_after_six_steps_and_half_a_minute() -> None:
    last = record(100)
    assert run_of(*steps(1, 100), now_s=last.time_s + 29).status == "running"
    stalled = run_of(*steps(1, 100), now_s=last.time_s + 31)
    assert (stalled.status, stalled.eta_s) == ("stalled", None)
    slow = [StepSample(record(step, step_s=60.0, time_s=step * 60.0), step * 60.0) for step in range(1, 9)]  # fmt: skip
    assert run_of(*slow, now_s=480.0 + 300).status == "running"
    assert run_of(*slow, now_s=480.0 + 400).status == "stalled"


def test_last_step_finishes_the_run_and_it_never_stalls_after() -> None:
    now = run_of(*steps(880, 900), now_s=1e12)
    assert (now.status, now.eta_s, now.part) == ("finished", None, 1.0)


def test_failed_is_said_by_the_journal() -> None:
    ended = EventSample(Event("failed", "rank 1 was killed"), 1.0, "journal")
    assert run_of(*steps(1, 10), ended, now_s=1.0).status == "failed"


def test_trouble_is_told_from_what_is_usual() -> None:
    usual = [Event("start"), Event("rank-ended", data={"code": 0}), Event("end", data={"exit_code": 130})]  # fmt: skip
    trouble = [Event("lost"), Event("rank-ended", data={"code": -9}), Event("end", data={"exit_code": 1})]  # fmt: skip
    assert [is_bad(event) for event in usual + trouble] == [False] * 3 + [True] * 3


def test_ranks_that_were_asked_to_stop_are_no_trouble() -> None:
    stop = [Event("rank-ended", data={"code": 130}), Event("failure", "asked", {"exit_code": 130})]
    assert [is_bad(event) for event in stop] == [False, False]


def test_traceback_becomes_its_first_and_last_line() -> None:
    event = Event("failure", "n2 was lost: Traceback\n  File x\n\nOSError: disk full\n")
    assert one_line(event) == "n2 was lost: Traceback … OSError: disk full"


def test_phases_add_up_to_the_step() -> None:
    now = run_of(*steps(1, 60), now_s=1.0)
    names = [name for name, _ in now.phases]
    assert names == ["data", "encode", "forward", "backward", "optimizer", "other"]
    assert now.step_s is not None
    assert abs(sum(seconds for _, seconds in now.phases) - 0.29) < 0.01


def test_slowest_rank_is_named_with_how_often() -> None:
    now = run_of(*steps(1, 40, slowest_rank=27, world=192), *steps(41, 50, slowest_rank=3, world=192), now_s=1.0)  # fmt: skip
    assert (now.slowest_rank, now.slowest_steps, now.window) == (27, 40, 50)


def test_one_rank_is_never_the_slowest() -> None:
    assert run_of(*steps(1, 5, world=1, slowest_rank=0), now_s=1.0).slowest_rank is None


def test_mfu_is_of_the_whole_time_between_steps() -> None:
    """2 ranks, 6e11 FLOP a step, one step each 0.3 s: 1 TFLOP/s a rank."""
    now = run_of(*steps(1, 60, flops=6e11), now_s=record(60).time_s)
    assert now.flops_s == pytest.approx(1e12, rel=0.02)
    assert mfu(now, 4e12) == pytest.approx(0.25, rel=0.02)
    assert mfu(now, None) is None
    assert mfu(run_of(*steps(1, 9), now_s=0.0), 4e12) is None


def test_buckets_checkpoint_and_restarts() -> None:
    samples = [*steps(1, 30, bucket="a"), *steps(31, 40, bucket="b")]
    samples += [
        EventSample(Event("start", "", {}, 1, 5.0), 5.0),
        EventSample(Event("checkpoint", "", {}, 20, 9.0), 9.0),
        EventSample(Event("note", "", {}, 21, 10.0), 10.0),
    ]
    now = run_of(*samples, now_s=0.0)
    assert now.buckets == (("a", 0.75), ("b", 0.25))
    assert now.checkpoint == (20, 9.0)
    assert now.restarts == 1
