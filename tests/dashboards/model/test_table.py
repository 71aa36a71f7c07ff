from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.model.outliers import odd_gpus
from dashboards.model.ring_buffer import gpu_column
from dashboards.model.samples import NodeDown, NodeSample, Tick
from dashboards.model.state import State, initial_state
from dashboards.model.table import (
    METRICS,
    NODE_METRICS,
    arranged,
    cells,
    node_value,
    short_names,
    summarise,
    usual_range,
)
from dashboards.reduce import fold
from tests.dashboards.model.test_state import busy

POWER, CLOCK = METRICS[0], METRICS[-1]


def low(node: str, at_s: float, index: int, watts: float) -> NodeSample:
    sample = busy(node, at_s)
    assert sample.gpus is not None
    gpus = tuple(replace(g, power_w=watts) if g.index == index else g for g in sample.gpus)
    return replace(sample, gpus=gpus)


def seconds(count: int, watts: float = 101.0) -> State:
    state = initial_state(["a", "b"], now_s=0.0)
    for second in range(count):
        state = fold(state, [busy("a", second), low("b", second, 3, watts), Tick(second)])
    return state


def test_gpu_idle_among_busy_ones_is_odd_with_the_reason() -> None:
    assert seconds(6).odd == {("b", 3): "101 W, the others 694 W"}


def test_one_low_reading_is_not_odd() -> None:
    assert seconds(3).odd == {}


def test_fleet_that_rests_together_has_no_odd_one() -> None:
    state = initial_state(["a"], now_s=0.0)
    for second in range(8):
        sample = busy("a", second)
        gpus = tuple(replace(g, power_w=90.0 + 60 * (g.index == 2)) for g in sample.gpus or ())
        state = fold(state, [replace(sample, gpus=gpus), Tick(second)])
    assert state.odd == {}


def test_hot_gpu_is_odd_at_once() -> None:
    sample = busy("a", 0.0)
    gpus = tuple(replace(g, temperature_c=91.0 if g.index == 1 else 60.0) for g in sample.gpus or ())  # fmt: skip
    state = fold(initial_state(["a"], now_s=0.0), [replace(sample, gpus=gpus), Tick(0.0)])
    assert state.odd == {("a", 1): "91 °C"}


def test_stale_and_silent_nodes_are_not_compared() -> None:
    state = fold(seconds(6), [NodeDown("b", 6.0, "tcp", "gone"), busy("a", 6.0), Tick(6.0)])
    assert odd_gpus(state) == {}


def test_orders_and_filter() -> None:
    state = fold(
        initial_state(["n1", "n2", "m3"], now_s=0.0),
        [busy("n1", 1.0, 2), busy("n2", 1.0, 8), NodeDown("m3", 1.0, "auth", "denied"), Tick(1.0)],
    )
    assert [n.name for n in arranged(state, POWER, "hostfile", "")] == ["n1", "n2", "m3"]
    assert [n.name for n in arranged(state, POWER, "value", "")] == ["n2", "n1", "m3"]
    assert [n.name for n in arranged(state, POWER, "state", "")] == ["m3", "n1", "n2"]
    assert [n.name for n in arranged(state, POWER, "hostfile", "N")] == ["n1", "n2"]
    assert [n.name for n in arranged(state, POWER, "hostfile", "-")] == ["m3"]
    assert [n.name for n in arranged(state, POWER, "hostfile", "n1, m")] == ["n1", "m3"]


def test_summary_counts_what_can_be_known() -> None:
    summary = summarise(seconds(6))
    assert (summary.nodes, summary.answering, summary.gpus, summary.odd) == (2, 2, 16, 1)


def test_clock_of_a_node_is_that_of_its_slowest_gpu_and_unknown_ones_have_none() -> None:
    sample = busy("a", 0.0)
    clocks = [1980.0, 1980.0, 345.0, 1965.0, None, 1980.0, 1980.0, 1980.0]
    gpus = tuple(replace(g, sm_mhz=clocks[g.index]) for g in sample.gpus or ())
    state = fold(initial_state(["a"], now_s=0.0), [replace(sample, gpus=gpus), Tick(0.0)])
    node = state.nodes["a"]
    assert node.sample is not None
    assert CLOCK.say(node_value(node.sample, CLOCK)) == "345 MHz"
    shown = cells(node, CLOCK, state)
    assert [(cell.value, cell.mark) for cell in shown[3:5]] == [(1965.0, ""), (None, "-")]
    low, high = usual_range(state, CLOCK) or (0.0, 0.0)
    assert 345 < low < 1965 < 1980 < high
    assert node.history.column(gpu_column(2, "clock")) == [345.0]
    (unknown,) = node.history.column(gpu_column(4, "clock"))
    assert CLOCK.say(unknown) == "-"
    assert node_value(NodeSample("b", 1.0), CLOCK) is None


@pytest.mark.parametrize(
    ("names", "prefix", "shorts"),
    [
        (["ml-64-node-001", "ml-64-node-024"], "ml-64-node-", ["001", "024"]),
        (["gpu-rack-a-7", "gpu-rack-a-11"], "gpu-rack-a-", ["7", "11"]),
        (["alphaville", "alphabetical"], "", ["alphaville", "alphabetical"]),
        (["192.168.100.10", "192.168.100.11"], "192.168.100.", ["10", "11"]),
        (["demo-0", "demo-1"], "", ["demo-0", "demo-1"]),
        (["only-one-long-name"], "", ["only-one-long-name"]),
        ([], "", []),
    ],
)
def test_common_beginnings_of_names_are_said_once(
    names: list[str], prefix: str, shorts: list[str]
) -> None:
    found, short = short_names(names)
    assert found == prefix
    assert [short[name] for name in names] == shorts


def test_unknown_readings_give_no_value() -> None:
    bare = NodeSample("a", 1.0)
    assert [metric.read(bare) for metric in NODE_METRICS] == [None] * 4
