"""A head whose clock is set back between two attempts: what is told is in the order of the lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.launch.head.status import read_status
from clusterctl.runs.journal import Journal, after_event, launcher_event
from clusterctl.why.explain import explain

HOUR_S = 3600.0


def lines(*events: tuple[str, float, float, dict[str, object]]) -> list[str]:
    return [
        json.dumps(
            {"event": name, "text": name, "node": None, "mono_s": mono_s, "time_s": time_s}
            | {"data": data}
        )
        for name, time_s, mono_s, data in events
    ]


def run_with(by_s: float) -> list[str]:
    """The clock is set by `by_s` after the first attempt."""
    now_s = 1.79e9
    begin = {"nodes": ["n1"], "world_size": 1}
    return lines(
        ("attempt", now_s, 100.0, {**begin, "attempt": 1}),
        ("rank-ended", now_s + 50, 150.0, {"code": -9}),
        ("failure", now_s + 51, 151.0, {"exit_code": 1}),
        ("restart", now_s + 52, 152.0, {"attempt": 2, "cause": "signal-9"}),
        ("attempt", now_s + by_s + 57, 157.0, {**begin, "attempt": 2}),
        ("end", now_s + by_s + 100, 200.0, {"exit_code": 1}),
    )


@pytest.mark.parametrize("by_s", [-HOUR_S, -5.0, 0.0, HOUR_S])
def test_end_and_attempts_are_those_of_the_lines(tmp_path: Path, by_s: float) -> None:
    journal = Journal()
    for line in run_with(by_s):
        event = launcher_event(line)
        assert event is not None
        journal = after_event(journal, event)
    assert [one.number for one in journal.begins] == [1, 2]
    assert journal.end is not None
    assert journal.end.time_s - journal.begins[-1].time_s == pytest.approx(43.0)
    if by_s == -HOUR_S:
        assert journal.begins[1].time_s - journal.begins[0].time_s == pytest.approx(57.0)
    (tmp_path / "events.jsonl").write_text("\n".join(run_with(by_s)) + "\n")
    status = read_status(tmp_path)
    assert (status.state, status.exit_code, status.end_code) == ("ended", 1, 1)
    assert explain(tmp_path, None, 1.79e9 + 7200).state == "failed"


def test_another_supervisor_on_a_machine_with_another_clock_moves_nothing() -> None:
    journal = Journal()
    more = lines(
        ("supervisor", 1.79e9 + 57, 9e6, {}),
        ("attempt", 1.79e9 + 58, 9e6 + 1, {"attempt": 2, "nodes": ["n1"]}),
    )
    for line in [*run_with(0.0)[:4], *more]:
        event = launcher_event(line)
        assert event is not None
        journal = after_event(journal, event)
    assert [one.time_s - 1.79e9 for one in journal.begins] == [0.0, 58.0]


@pytest.mark.parametrize("number", [10**400, -(10**309)])
def test_a_line_with_a_number_without_a_float_is_left_out(tmp_path: Path, number: int) -> None:
    good = run_with(0.0)
    bad = [json.dumps(json.loads(line) | {"mono_s": number}) for line in good]
    assert [launcher_event(line) for line in bad] == [None] * len(good)
    (tmp_path / "events.jsonl").write_text("\n".join([*bad, *good]) + "\n")
    assert read_status(tmp_path).state == "ended"
    assert explain(tmp_path, None, 1.79e9 + 7200).state == "failed"
