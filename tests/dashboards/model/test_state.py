from __future__ import annotations

import math
from dataclasses import replace

from dashboards.model.ring_buffer import FLEET_COLUMNS, NODE_COLUMNS, gpu_column
from dashboards.model.samples import (
    EventSample,
    Gpu,
    NodeDown,
    NodeSample,
    RunOpened,
    Sample,
    StepSample,
    Tick,
)
from dashboards.model.state import State, initial_state
from dashboards.model.table import METRICS, cells, node_mark, past
from dashboards.reduce import fold
from tests.dashboards.runs import record
from trainer.runlog.telemetry import Event

POWER = METRICS[0]


def reduce(state: State, sample: Sample) -> State:
    return fold(state, (sample,))


def busy(node: str, at_s: float, count: int = 8, **changed: object) -> NodeSample:
    gpus = tuple(
        Gpu(i, "H100", 690.0 + i, 700.0, 1.0, 71e9, 80e9, 60.0, 1980.0) for i in range(count)
    )
    sample = NodeSample(node, at_s, 0.2, 208, 40.0, 6e11, 2e12, 1e9, gpus)
    return replace(sample, **changed)  # type: ignore[arg-type]


def begin(*names: str) -> State:
    return initial_state(names, now_s=0.0)


def test_reduce_is_pure() -> None:
    before = begin("a")
    after = reduce(before, busy("a", 1.0))
    assert before.nodes["a"].sample is None
    assert after.nodes["a"].sample is not None


def test_folding_many_is_the_same_as_one_by_one() -> None:
    samples = [busy("a", 1.0), busy("b", 1.0), Tick(1.0), NodeDown("b", 2.0, "tcp", "gone"), busy("a", 2.0), Tick(2.0)]  # fmt: skip
    one_by_one = begin("a", "b")
    for sample in samples:
        one_by_one = reduce(one_by_one, sample)
    assert fold(begin("a", "b"), samples) == one_by_one


def test_nodes_stay_in_the_hostfiles_order() -> None:
    state = fold(begin("z", "a", "m"), [busy("m", 1.0), busy("a", 1.0), busy("z", 1.0)])
    assert list(state.nodes) == ["z", "a", "m"]


def test_node_without_a_reading_is_unknown_and_not_zero() -> None:
    state = reduce(begin("a"), Tick(1.0))
    assert node_mark(state.nodes["a"], state) == ("-", "waiting")
    assert math.isnan(state.fleet.column(FLEET_COLUMNS.index("power_kw"))[-1])


def test_reading_is_stale_after_three_intervals_and_shows_its_age() -> None:
    state = fold(begin("a"), [busy("a", 10.0), Tick(13.0)])
    assert node_mark(state.nodes["a"], state) == ("", "")
    state = reduce(state, Tick(13.1))
    assert node_mark(state.nodes["a"], state)[0] == "~"
    state = reduce(state, Tick(41.0))
    assert node_mark(state.nodes["a"], state) == ("~", "31 s")
    assert {cell.mark for cell in cells(state.nodes["a"], POWER, state)} == {"~"}


def test_node_that_comes_back_is_good_again() -> None:
    state = fold(begin("a"), [busy("a", 1.0), NodeDown("a", 5.0, "tcp", "no route"), Tick(5.0)])
    assert node_mark(state.nodes["a"], state) == ("-", "tcp")
    assert [cell.mark for cell in cells(state.nodes["a"], POWER, state)] == ["-"] * 8
    state = fold(state, [busy("a", 9.0), Tick(9.0)])
    assert node_mark(state.nodes["a"], state) == ("", "")


def test_gpu_that_was_there_and_is_gone_is_missing() -> None:
    sample = busy("a", 2.0)
    assert sample.gpus is not None
    state = fold(begin("a"), [busy("a", 1.0), replace(sample, gpus=sample.gpus[:6] + sample.gpus[7:]), Tick(2.0)])  # fmt: skip
    assert node_mark(state.nodes["a"], state) == ("x", "GPU 6 gone")
    assert [cell.mark for cell in cells(state.nodes["a"], POWER, state)] == [""] * 6 + ["x", ""]


def test_gpus_that_could_not_be_asked_are_unknown_and_not_missing() -> None:
    silent = busy("a", 2.0, gpus=None, gpu_error="nvidia-smi: no answer for 9 s")
    state = fold(begin("a"), [busy("a", 1.0), silent, Tick(2.0)])
    assert node_mark(state.nodes["a"], state) == ("-", "GPUs ?")
    assert [cell.mark for cell in cells(state.nodes["a"], POWER, state)] == ["-"] * 8


def test_history_has_gaps_where_nothing_came() -> None:
    state = fold(begin("a"), [busy("a", 1.0), busy("a", 2.0), busy("a", 6.0)])
    column = state.nodes["a"].history.column(gpu_column(0, "power"))
    assert [value == value for value in column] == [True, True, False, False, False, True]
    state = reduce(state, Tick(9.0))
    latest = past(state.nodes["a"], NODE_COLUMNS.index("cpu"), 4, state)
    assert [value == value for value in latest] == [False, True, False, False]


def test_history_of_an_hour_is_bounded() -> None:
    state = begin("a")
    for second in range(2 * 3600 + 120):
        state = reduce(state, busy("a", float(second), count=1))
    history = state.nodes["a"].history
    assert 3600 <= len(history) <= 3660


def test_a_thousand_nodes_keep_an_hour_in_coarser_rows() -> None:
    state = initial_state([f"n{i}" for i in range(1000)], now_s=0.0)
    assert state.history_step_s == 6.0
    history = state.nodes["n0"].history
    assert history.limit == 600
    assert 1000 * 2 * gpu_column(8, "power") * history.limit < 60e6  # bytes of half floats


def test_run_is_opened_before_its_records_count() -> None:
    state = reduce(begin(), StepSample(record(1), 1.0))
    assert state.run is None
    state = fold(state, [RunOpened("outputs/001", "001", 1.0, ("a", "b"), (4, 4)), StepSample(record(1), 1.0)])  # fmt: skip
    assert state.run is not None
    assert state.run.last == record(1)
    assert list(state.nodes) == ["a", "b"]


def test_hostfile_wins_over_the_nodes_of_the_plan() -> None:
    state = reduce(begin("x"), RunOpened("outputs/001", "001", 1.0, ("a", "b"), (4, 4)))
    assert list(state.nodes) == ["x"]


def test_another_run_starts_afresh() -> None:
    state = fold(begin(), [RunOpened("1", "1", 0.0), StepSample(record(7), 1.0), RunOpened("2", "2", 2.0)])  # fmt: skip
    assert state.run is not None
    assert state.run.name == "2"
    assert state.run.last is None
    assert state.run.curve.rows() == []


def test_smoothed_loss_begins_at_the_first_loss_and_skips_nan() -> None:
    state = fold(begin(), [RunOpened("1", "1", 0.0), StepSample(record(1, loss=0.8), 1.0)])
    assert state.run is not None
    assert abs(state.run.smooth / state.run.smooth_weight - 0.8) < 1e-9
    state = reduce(state, StepSample(record(2, loss=math.nan), 2.0))
    assert state.run is not None
    assert abs(state.run.smooth / state.run.smooth_weight - 0.8) < 1e-9
    assert math.isnan(state.run.curve.rows()[-1][1])


def test_steps_done_again_after_a_resume_replace_the_old_ones() -> None:
    state = reduce(begin(), RunOpened("1", "1", 0.0))
    state = fold(state, [StepSample(record(step), 1.0) for step in (1, 2, 3, 4, 3)])
    assert state.run is not None
    assert [old.step for old in state.run.recent] == [1, 2, 3]


def test_events_of_two_files_stand_in_order_of_their_time() -> None:
    def event(name: str, time_s: float) -> EventSample:
        return EventSample(Event(name, time_s=time_s), time_s)

    state = fold(begin(), [RunOpened("1", "1", 0.0), event("a", 5.0), event("c", 9.0), event("b", 7.0)])  # fmt: skip
    assert state.run is not None
    assert [sample.event.name for sample in state.run.events] == ["a", "b", "c"]


def test_journal_says_how_the_run_ended_and_where_nodes_are() -> None:
    def event(name: str, **data: object) -> EventSample:
        return EventSample(Event(name, data=data), 1.0, "journal")

    state = fold(begin(), [RunOpened("1", "1", 0.0), event("rank", node="a"), event("rank", node="b"), event("rank-ended", node="b", code=-9), event("failure")])  # fmt: skip
    assert state.run is not None
    assert state.run.node_states == {"a": "running", "b": "failed"}
    assert state.run.ended == "failed"
    for code, ended in ((0, "finished"), (130, "stopped"), (1, "failed")):
        after = reduce(state, event("end", exit_code=code))
        assert after.run is not None
        assert after.run.ended == ended
    state = reduce(state, StepSample(record(5), 2.0))
    assert state.run is not None
    assert state.run.ended == ""  # it goes on: a restart


def test_run_that_was_asked_to_stop_has_not_failed_nor_have_its_nodes() -> None:
    words: list[tuple[str, dict[str, object]]] = [("rank", {}), ("rank-ended", {"code": 130})]
    words += [("failure", {"exit_code": 130}), ("end", {"exit_code": 130})]
    state = reduce(begin(), RunOpened("1", "1", 0.0))
    for name, data in words:
        event = Event(name, data={"node": "a", **data})
        state = fold(state, [EventSample(event, 1.0, "journal"), Tick(1.0)])
        assert state.run is not None
        assert state.run.ended in ("", "stopped")
        assert not state.alerts.active
    assert state.run is not None
    assert (state.run.node_states, state.run.ended) == ({"a": "stopped"}, "stopped")
