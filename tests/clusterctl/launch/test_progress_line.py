"""The line of a launch in a log: it comes when it changes, and seldom when it does not."""

from __future__ import annotations

import time

import pytest

from clusterctl.launch import progress
from clusterctl.launch.state import NodeState, RunState
from clusterctl.output import Output
from trainer.runlog.telemetry import Event


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def hours(shown: progress.Progress, state: RunState, clock: Clock, count: float) -> None:
    for _ in range(int(count * 3600 / 2)):
        clock.now += 2
        shown.update(state)


def test_run_that_waits_for_a_day_fills_no_log(clock: Clock, capsys) -> None:
    shown = progress.Progress(Output())
    state = RunState(nodes={"n1": NodeState("lost")})
    state.enter("waiting", "no node can be used of the 1 that are needed")
    hours(shown, state, clock, 24)
    lines = capsys.readouterr().err.splitlines()
    assert 24 <= len(lines) <= 24 * 6 + 1
    assert lines[0].startswith("waiting: no node can be used of the 1 that are needed  ")


def test_line_that_changes_comes_every_ten_seconds(clock: Clock, capsys) -> None:
    shown = progress.Progress(Output())
    state = RunState(nodes={"n1": NodeState("connecting")})
    for number in range(60):
        state.nodes["n1"].text = f"step {number}"
        clock.now += 2
        shown.update(state)
    assert 10 <= len(capsys.readouterr().err.splitlines()) <= 13


@pytest.mark.parametrize("name", ["save-failed", "lost"])
def test_what_a_full_disk_costs_is_shown(clock: Clock, capsys, name: str) -> None:
    state = RunState(nodes={"n1": NodeState("running")})
    state.add(Event(name, "12 lines could not be written: the disk became full", {}, time_s=0.0))
    progress.Progress(Output()).update(state)
    assert f"  {name}: 12 lines could not be written" in capsys.readouterr().err
