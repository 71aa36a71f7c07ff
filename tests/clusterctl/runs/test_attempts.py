"""Attempts, ETTR and lost time by cause: of known histories, and against a slow exact calculation."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from clusterctl.runs.attempts import DONE, ROLLBACK, RUNNING, USER_STOP
from clusterctl.runs.journal import Journal, after_event, incident_event, launcher_event
from tests.clusterctl.runs.attempts_of import BEGAN, Attempts, three_attempts
from tests.dashboards.runs import record
from trainer.runlog.steps import MOST, Steps, after_line, after_record
from trainer.runlog.telemetry import Event, StepRecord, encode


def test_attempts_have_steps_nodes_and_how_they_ended() -> None:
    found = three_attempts().account()
    rows = [(a.number, a.first, a.last, a.ending, a.node) for a in found.attempts]
    assert rows == [
        (1, 1, 150, "signal-9", "n2"),
        (2, 101, 120, "hang-data", "n1"),
        (3, 101, 200, RUNNING, None),
    ]
    assert found.attempts[0].text == "rank 3 on n2: signal-9"
    assert found.attempts[2].checkpoint == "epoch0-global_step100"
    assert found.attempts[2].nodes == ("n1", "n3")
    assert (found.restarts, found.spares, found.excluded) == (2, (), (("n2", "two crashes"),))
    assert found.restarting_since_s is None


def test_ettr_counts_a_step_once_and_lost_time_is_by_cause() -> None:
    run = three_attempts()
    found = run.account()
    wall_s = run.at_s - BEGAN
    assert found.effective_s == pytest.approx(200.0)
    assert found.ettr(run.at_s) == pytest.approx(200 / wall_s)
    # Steps 101 to 150 of attempt 1, 5 s until it was noticed, 4 s of waiting, 20 s of loading.
    # Attempt 2: 20 steps, 60 s until the hang was seen, 8 s of waiting, 20 s of loading.
    assert found.lost_s(run.at_s) == pytest.approx({"hang-data": 108.0, "signal-9": 79.0})
    # The rest of the wall time is the start of attempt 1.
    assert wall_s == pytest.approx(200 + 108 + 79 + 20)


def test_time_goes_on_being_lost_until_a_step_comes() -> None:
    run = three_attempts()
    run.incident("signal-9", after_s=10.0)
    found = run.account()
    assert found.pending == ("signal-9", run.at_s - 10.0)
    assert found.lost_s(run.at_s + 30)["signal-9"] == pytest.approx(79.0 + 40.0)
    assert found.restarting_since_s is None
    run.restart()
    run.attempt(after=150)
    found = run.account()
    assert found.restarting_since_s == run.at_s - 20.0
    # Now it is known from which step the run goes on: 50 steps will be done again.
    assert found.lost_s(run.at_s)["signal-9"] == pytest.approx(79.0 + 50 + 10 + 4 + 20)
    run.train(1)
    found = run.account()
    assert found.restarting_since_s is None
    assert found.pending is None
    assert found.lost_s(run.at_s)["signal-9"] == pytest.approx(79.0 + 50 + 10 + 4 + 20)


def test_attempt_that_takes_no_step_has_its_own_share() -> None:
    run = Attempts()
    run.attempt()
    run.train(10)
    run.incident("signal-9", after_s=1.0)
    run.restart(wait_s=2.0)
    run.attempt(after=10, load_s=7.0)
    run.incident("port-taken", after_s=0.0)
    run.restart(wait_s=4.0)
    run.attempt(after=10, load_s=5.0)
    run.train(1)
    assert run.account().lost == pytest.approx({"signal-9": 3.0, "port-taken": 7.0 + 4.0 + 5.0})


def test_attempts_without_any_step_before_the_first_one_are_lost_time() -> None:
    run = Attempts()
    run.attempt(load_s=3.0)
    run.incident("missing-file", after_s=1.0)
    run.restart(wait_s=2.0)
    assert run.account().lost_s(run.at_s) == pytest.approx({"missing-file": 6.0})
    run.attempt(load_s=5.0)
    run.train(5)
    assert run.account().lost_s(run.at_s) == pytest.approx({"missing-file": 6.0})


def test_end_of_the_run_ends_the_last_attempt_and_the_wall_time() -> None:
    run = three_attempts()
    run.end(0)
    found = run.account()
    assert found.attempts[-1].ending == DONE
    assert found.ettr(run.at_s + 1e6) == found.ettr(run.at_s)
    stopped = three_attempts()
    stopped.incident("user-stop")
    stopped.end(130, "stopped by the user")
    found = stopped.account()
    assert (found.attempts[-1].ending, found.pending) == (USER_STOP, None)
    failed = three_attempts()
    failed.incident("disk-full")
    failed.end(1, "rank 3 on n2: disk-full")
    assert failed.account().lost_s(1e11)["disk-full"] == pytest.approx(5.0)


def test_run_without_a_launcher_has_the_starts_of_its_trainer() -> None:
    run = Attempts()
    run.start(0)
    run.train(30)
    run.at_s += 100
    run.start(20)
    run.train(5)
    run.telemetry.append(Event("stopped", "stopped at step 25", {}, 25, run.at_s))
    run.at_s += 1000
    run.start(25)
    run.train(5)
    found = run.account()
    assert [(a.first, a.last, a.ending) for a in found.attempts] == [(1, 30, "unknown"), (21, 25, USER_STOP), (26, 30, "")]  # fmt: skip
    assert (found.restarts, found.spares) == (2, None)
    assert found.lost == pytest.approx({"unknown": 110.0, USER_STOP: 1000.0})


def test_rollback_of_the_guards_is_no_attempt_and_costs_time() -> None:
    run = Attempts()
    run.attempt()
    run.train(50)
    run.telemetry.append(Event("rollback", "back to epoch0-global_step40", {}, 50, run.at_s))
    run.at_s += 3
    run.start(40)
    run.train(10)
    found = run.account()
    assert [(a.first, a.last) for a in found.attempts] == [(1, 50)]
    assert found.restarts == 0
    assert found.lost == pytest.approx({ROLLBACK: 13.0})


def test_order_in_which_the_two_files_are_read_does_not_matter() -> None:
    run = three_attempts()
    expected = run.account()
    random.Random(0).shuffle(run.incidents)
    run.events.reverse()
    assert run.account() == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_an_exact_calculation(seed: int) -> None:
    chance = random.Random(seed)
    run = Attempts()
    run.attempt()
    for _ in range(chance.randint(1, 6)):
        run.train(chance.randint(1, 120), step_s=chance.choice((0.5, 1.0, 3.0)))
        run.incident(chance.choice(("signal-9", "hang", "xid-79")), after_s=chance.uniform(0.5, 60))
        run.restart()
        run.attempt(after=chance.randint(max(0, run.step - 100), run.step))
    run.train(chance.randint(1, 50))
    final: dict[int, StepRecord] = {}
    for one in run.telemetry:
        if isinstance(one, StepRecord):
            final = {step: kept for step, kept in final.items() if step < one.step}
            final[one.step] = one
    found = run.account()
    assert found.effective_s == pytest.approx(sum(one.step_s for one in final.values()))
    wall_s = run.at_s - BEGAN
    lost_s = sum(found.lost_s(run.at_s).values())
    assert found.effective_s + lost_s + 20.0 == pytest.approx(wall_s)  # 20 s: the first start


def test_lines_give_the_same_as_their_records() -> None:
    trap = 'bucket",\\"step_s":9,"time_s":7,'
    odd = [
        record(1, step_s=1e-7, time_s=BEGAN),
        replace(record(2, step_s=0.25, loss=float("nan"), time_s=BEGAN + 2), bucket=trap),
        record(3, step_s=2.5e15, time_s=0.0),
        Event("checkpoint", 'x","step_s":3,"time_s":4}', {"kind": "step"}, 3, BEGAN + 3),
    ]
    for records in (three_attempts().telemetry, odd):
        by_record, by_line = Steps(), Steps()
        for one in records:
            by_record = after_record(by_record, one)
            by_line = after_line(by_line, encode(one).encode() + b"\n")
            assert repr(by_line) == repr(by_record)
    for torn in (b"", b'{"kind":"step","step":4,', encode(odd[2]).encode()[:-9], b"\xff\n"):
        assert after_line(by_line, torn) is by_line


@pytest.mark.long
def test_many_steps_stay_small_and_going_back_far_is_nearly_exact() -> None:
    steps = Steps()
    for step in range(1, 40_001):
        one = replace(record(step, time_s=BEGAN + 5.0 * step), step_s=1.0 + step % 7)
        steps = after_record(steps, one)
    assert sum(map(len, steps.levels)) < 2000
    steps = after_record(steps, Event("start", "", {}, 12_001, BEGAN + 2e6))
    exact = sum(1.0 + step % 7 for step in range(1, 12_002))
    assert steps.effective_s == pytest.approx(exact, rel=1e-3)
    assert steps.last is not None
    assert steps.last[0] == 12_001


@pytest.mark.long
def test_thousands_of_restarts_stay_bounded() -> None:
    journal, steps = Journal(), Steps()
    for number in range(1, 3001):
        at_s = BEGAN + 100.0 * number
        journal = after_event(journal, Event("attempt", "", {"attempt": number}, None, at_s))
        journal = after_event(journal, Event("restart", "", {"attempt": number + 1}, None, at_s + 9))  # fmt: skip
        steps = after_record(steps, Event("start", "", {}, 1, at_s + 1))
        steps = after_record(steps, record(2, step_s=1.0, time_s=at_s + 3))
    assert len(journal.begins) == len(journal.restarts) == len(steps.pauses) == MOST
    assert journal.restart_count == 3000


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", "1" * 5000, '{"incident": 3}', '{"incident": "crash"}', '{"incident": "crash", "time_s": "now"}',
     '{"incident": "crash", "time_s": NaN}', "[" * 100_000],
)  # fmt: skip
def test_lines_that_are_no_incident_are_left_out(line: str) -> None:
    assert incident_event(line) is None


@pytest.mark.parametrize("time_s", ["NaN", "1e400", "-1", "1" + 400 * "0"])
def test_line_of_a_time_that_cannot_be_is_left_out(time_s: str) -> None:
    assert launcher_event(f'{{"event": "end", "time_s": {time_s}}}') is None


def test_event_without_a_time_begins_and_ends_nothing() -> None:
    for name in ("attempt", "restart", "end"):
        event = launcher_event(json.dumps({"event": name, "data": {"attempt": 1}}))
        assert event is not None
        assert after_event(Journal(), event) == Journal()


@pytest.mark.parametrize(
    "data",
    [{}, {"attempt": "2"}, {"attempt": -1}, {"attempt": True}, {"attempt": 2, "nodes": 5, "spares": "n3", "excluded": [3, {"node": 4}]},
     {"attempt": 2, "nodes": ["n1", 3], "world_size": 1e400, "from": ["x"]}],
)  # fmt: skip
def test_events_that_hold_something_else_do_no_harm(data: dict[str, object]) -> None:
    journal = after_event(Journal(), Event("attempt", "x", data, None, BEGAN))
    restart = {"attempt": data.get("attempt"), "cause": 3, "node": [], "restarts": "many"}
    journal = after_event(journal, Event("restart", "x", restart, None, BEGAN + 1))
    journal = after_event(journal, Event("end", "x", {"exit_code": "0"}, None, BEGAN + 2))
    assert journal.restart_count == 1
    assert all(isinstance(name, str) for begin in journal.begins for name in begin.nodes)
