"""Attempts in the live view, its JSON, its metrics, its recordings: of a run that was restarted twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.cli import run as command
from clusterctl.runs.journal import MONO_S
from dashboards.export.metrics import METRICS, values
from dashboards.feeds.run_dir import RunDirFeed
from dashboards.model.ring_buffer import Thin
from dashboards.model.run_progress import figures
from dashboards.model.samples import EventSample, RunOpened, StepSample, Tick
from dashboards.model.state import RunState, State, initial_state
from dashboards.recording import codec
from dashboards.reduce import fold
from tests.clusterctl.runs.attempts_of import Attempts, three_attempts
from trainer.runlog.telemetry import Event


def watched(run: Attempts, run_dir: Path, *, after_s: float = 1.0) -> State:
    """The state after one poll of its run directory."""
    run.write(run_dir)
    feed = RunDirFeed(run_dir, clock=lambda: run.at_s)
    state = initial_state((), now_s=0.0, source="")
    return fold(state, [*feed.poll(), Tick(run.at_s + after_s)])


def run_of(state: State) -> RunState:
    assert state.run is not None
    return state.run


def test_figures_have_attempts_nodes_and_lost_time(tmp_path: Path) -> None:
    run = three_attempts()
    state = watched(run, tmp_path / "001-x")
    now = figures(run_of(state), state.now_s)
    assert (now.status, now.attempt, now.restarts, now.spares, now.excluded) == ("running", 3, 2, 0, ("n2",))  # fmt: skip
    assert [cause for cause, _ in now.lost_s] == ["hang-data", "signal-9"]
    assert now.ettr == pytest.approx(200 / (run.at_s + 1.0 - 1_795_269_600.0))
    # The time that restarts took is not part of the pace; the file is a moment old.
    assert now.eta_s == pytest.approx(800 * 1.0 - 1.0, abs=5.0)


def test_nodes_of_the_run_are_those_of_its_newest_attempt(tmp_path: Path) -> None:
    run = run_of(watched(three_attempts(), tmp_path / "001-x"))
    assert (run.planned, run.ranks) == (("n1", "n3"), (2, 2))
    assert run.place_of(3) == ("n3", 1)
    assert run.node_states == {}


def test_attempt_on_nodes_that_no_plan_has_gives_no_wrong_place() -> None:
    opened = RunOpened("d", "001-x", 0.0, ("n1", "n2"), (8, 8))
    data = {"attempt": 2, "nodes": ["n1", "n3", "n4"], "world_size": 15}
    event = EventSample(Event("attempt", "x", data, None, 5.0), 5.0, "journal")
    run = run_of(fold(initial_state((), now_s=0.0), [opened, event, Tick(6.0)]))
    assert (run.planned, run.ranks) == (("n1", "n3", "n4"), ())
    assert run.place_of(9) is None


def test_run_that_restarts_is_neither_stalled_nor_failed_until_it_takes_too_long(
    tmp_path: Path,
) -> None:
    run = three_attempts()
    run.incident("signal-9")
    run.events.append(Event("failure", "rank 3 on n2", {"exit_code": 1}, None, run.at_s))
    run.restart()
    run.attempt(after=200)
    state = watched(run, tmp_path / "001-x", after_s=300.0)
    assert figures(run_of(state), state.now_s).status == "restarting"
    late = run.at_s + 1000
    assert figures(run_of(state), late).status == "stalled"


def test_curve_never_goes_back_and_forgets_what_was_broken_off(tmp_path: Path) -> None:
    run = Attempts()
    run.attempt()
    run.train(120, loss=1.0)
    run.train(30, loss=50.0)  # it diverges behind the checkpoint of step 100
    run.incident("diverged")
    run.restart()
    run.attempt(after=100)
    run.train(10, loss=1.0)
    state = run_of(watched(run, tmp_path / "001-x"))
    rows = state.curve.rows()
    assert [row[0] for row in rows] == [float(step) for step in range(1, 111)]
    assert all(row[1] == row[2] == 1.0 for row in rows)
    assert [one.step for one in state.recent] == list(range(1, 111))
    assert figures(state, run.at_s).smooth_loss == pytest.approx(1.0)


def test_thinned_curve_keeps_pending_rows_in_front_of_a_repeated_step() -> None:
    thin = Thin(4)
    for step in range(1, 2000):
        thin = thin.add(float(step), 1.0, 1.0, 1.0)
    assert (thin.stride, len(thin.pending)) == (2, 1)
    thin = thin.add(1999.0, 2.0, 1.0, 1.0)
    last = thin.rows()[-1]
    assert last[0] == 1999.0
    thin = replace(thin, pending=((2000.0, 1.0, 1.0, 1.0), (2001.0, 3.0, 1.0, 1.0)), last_x=2001.0, stride=8)  # fmt: skip
    assert thin.add(2001.0, 5.0, 1.0, 1.0).rows()[-1] == (2000.5, 3.0, 1.0, 1.0)


def test_steps_and_attempts_are_the_same_read_at_once_and_one_by_one(tmp_path: Path) -> None:
    run = three_attempts()
    at_once = run_of(watched(run, tmp_path / "001-x"))
    state = fold(initial_state((), now_s=0.0), [RunOpened("d", "001-x", 0.0, ("n1", "n2"), (2, 2))])
    for record in run.telemetry:
        is_event = isinstance(record, Event)
        state = fold(state, [EventSample(record, 0.0) if is_event else StepSample(record, 0.0)])  # type: ignore[arg-type]
    as_read = [replace(event, data={**event.data, MONO_S: 1.0}) for event in run.events]
    state = fold(state, [EventSample(event, 0.0, "journal") for event in as_read])
    state = fold(state, [EventSample(event, 0.0, "incidents") for event in run.incident_events()])
    assert run_of(state).steps == at_once.steps
    assert run_of(state).journal == at_once.journal


def test_recording_keeps_attempts(tmp_path: Path) -> None:
    run = run_of(watched(three_attempts(), tmp_path / "001-x"))
    again = codec.decode(json.loads(json.dumps(codec.encode(run))))
    assert (again.steps, again.journal) == (run.steps, run.journal)


def test_metrics_of_a_restarted_run(tmp_path: Path) -> None:
    state = watched(three_attempts(), tmp_path / "001-x")
    found = {one.name: dict(values(one, state)) for one in METRICS if one.name.startswith("run_")}
    name = ("001-x",)
    assert (found["run_attempt"], found["run_restarts_total"]) == ({name: 3.0}, {name: 2.0})
    assert (found["run_spares"], found["run_excluded_nodes"]) == ({name: 0.0}, {name: 1.0})
    assert 0.4 < found["run_ettr_ratio"][name] < 0.6
    lost = {("001-x", "signal-9"): 79.0, ("001-x", "hang-data"): 108.0}
    assert found["run_lost_seconds_total"] == pytest.approx(lost)


@pytest.mark.long
def test_text_and_json_of_one_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    assert command(["top", "--replay", str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "  attempt 3, 2 restarts, 0 spares left, excluded: n2\n" in said
    assert (
        "  effective training time (ETTR) 49.1%, lost: hang-data 1 min 48 s, signal-9 1 min 19 s\n"
        in said
    )
    assert command(["top", "--replay", str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run"]
    assert [(one["number"], one["ending"]) for one in found["attempts"]] == [(1, "signal-9"), (2, "hang-data"), (3, "")]  # fmt: skip
    assert found["figures"]["lost_s"] == {"hang-data": 108.0, "signal-9": 79.0}


@pytest.mark.long
def test_watch_tells_of_each_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = three_attempts().write(tmp_path / "001-x")
    command(["watch", "--replay", str(run_dir), "--json", "--check", "run.restarted"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begun = [line["alert"]["subject"] for line in lines if line["type"] == "fire"]
    assert begun == ["001-x attempt 2", "001-x attempt 3"]
