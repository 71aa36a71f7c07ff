"""Validation losses in the view of a run: the newest that counts, and none that was never measured."""

from __future__ import annotations

import math

import pytest

from dashboards.export.metrics import METRICS, values
from dashboards.model.run_progress import in_words
from dashboards.model.samples import EventSample, RunOpened
from dashboards.model.state import State, initial_state
from dashboards.reduce import fold
from trainer.runlog.telemetry import Event
from trainer.runlog.validation import Point


def validation(step: int, model: object, ema: object = None) -> Event:
    data = {"model": model, **({"ema": ema} if ema is not None else {})}
    return Event("validation", "loss …", data, step, 5.0)


def start(step: int) -> Event:
    return Event("start", "x", {}, step, 6.0)


def after(*events: Event) -> State:
    opened = RunOpened("d", "001-x", 0.0, ("n1",), (2,))
    told = [EventSample(event, event.time_s, "telemetry") for event in events]
    return fold(initial_state((), now_s=0.0), [opened, *told])


def known(*events: Event) -> Point | None:
    run = after(*events).run
    assert run is not None
    return run.validation


def test_newest_measurement_is_shown() -> None:
    first, second = {"loss": 0.9, "clips": 20}, {"loss": 0.8, "clips": 20}
    found = known(validation(10, first), validation(20, second, {"loss": 0.75}))
    assert found == Point(20, 0.8, 0.75, 20)
    assert in_words(found) == "0.800  EMA 0.750  step 20"
    assert in_words(Point(1500, 0.8, None)) == "0.800  step 1,500"


def test_what_a_run_that_went_back_has_measured_does_not_count() -> None:
    at_20 = validation(20, {"loss": 0.8})
    assert known(at_20, start(20)) == Point(20, 0.8, None)
    assert known(at_20, start(10)) is None


def beside(step: int, sealed_s: float) -> Event:
    """As `clusterctl serve --validate` measures a checkpoint."""
    data = {"model": {"loss": 0.7}, "checkpoint": f"epoch0-global_step{step}"}
    return Event("validation", "loss …", data, step, sealed_s)


def test_what_is_measured_beside_the_run_comes_in_any_order() -> None:
    own = validation(20, {"loss": 0.8})
    assert known(own, beside(30, 5.0), beside(10, 3.0)) == Point(30, 0.7, None)
    assert known(own, beside(20, 4.0)) == Point(20, 0.8, None)
    went_back = start(10)  # at 6.0
    assert known(went_back, beside(20, 5.0)) is None
    assert known(went_back, beside(20, 7.0)) == Point(20, 0.7, None)
    assert known(went_back, beside(10, 5.0)) == Point(10, 0.7, None)


@pytest.mark.parametrize(
    "model", [None, {}, {"loss": None}, {"loss": math.nan}, {"loss": True}, {"loss": "0.5"}, [1]]
)
def test_a_loss_that_is_none_is_not_shown(model: object) -> None:
    assert known(validation(10, model)) is None
    assert known(validation(10, {"loss": 0.9}), validation(20, model)) == Point(10, 0.9, None)


def test_metrics_have_both_losses_and_nothing_where_there_is_none() -> None:
    def figures(state: State) -> dict[str, list[float]]:
        wanted = [one for one in METRICS if one.name.startswith("run_validation")]
        return {one.name: [value for _, value in values(one, state)] for one in wanted}

    both = after(validation(10, {"loss": 0.9}, {"loss": 0.8}))
    assert figures(both) == {"run_validation_loss": [0.9], "run_validation_loss_ema": [0.8]}
    assert set(map(len, figures(after(validation(10, {"loss": 0.9}))).values())) == {0, 1}
    assert set(map(len, figures(after()).values())) == {0}
