"""What the watch reads of a slow rank's node is added to what the rank has read of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dashboards.model.samples import Gpu, Link, NodeSample, Process
from dashboards.model.slow_ranks import in_short, named, reading
from dashboards.model.state import RunState
from tests.trainer.runlog.test_slow_ranks import entry, said

GPU = Gpu(0, power_limit_w=700.0, sm_mhz=1980.0, throttle="", nvlinks=(18, 18))
PORT = Link("mlx5_0/1", "ib", "Active", 400.0, errors_min=0.0)


def node(name: str, **changed: Any) -> NodeSample:
    """Two GPUs with a rank on each."""
    gpus = (GPU, replace(GPU, index=1))
    ranks = tuple(Process(10 + index, "me", "python", index) for index in range(2))
    return replace(NodeSample(name, 1.0, gpus=gpus, processes=ranks, links=(PORT,)), **changed)


def run_with(*entries: dict[str, Any]) -> RunState:
    return RunState("outputs/001-x", "001-x", ("n1", "n2"), (2, 2), slow=said(*entries))


def test_a_neighbour_on_the_gpu_is_a_reason_that_the_watch_adds() -> None:
    stranger = Process(99, "eve", "miner", 1)
    sick = node("n2", processes=(*(node("n2").processes or ()), stranger))
    ((one, where),) = named(run_with(entry(3)), {"n1": node("n1"), "n2": sick})
    assert where == "n2"
    assert [reason.name for reason in one.reasons] == ["sm_mhz", "gpu_processes"]
    assert one.why.endswith("1 other processes use its GPU, the others' 0")


def test_what_the_rank_has_read_already_is_not_said_twice() -> None:
    sick = node("n2", gpus=(GPU, replace(GPU, index=1, sm_mhz=900.0, throttle="hw thermal")))
    ((one, _),) = named(run_with(entry(3)), {"n1": node("n1"), "n2": sick})
    assert [reason.name for reason in one.reasons] == ["sm_mhz", "throttle"]


def test_a_node_without_readings_keeps_what_the_rank_said() -> None:
    ((one, _),) = named(run_with(entry(3)), {"n1": node("n1")})
    assert [reason.name for reason in one.reasons] == ["sm_mhz"]
    assert named(run_with(), {}) == []


def test_in_short_the_first_is_named_with_how_many_more() -> None:
    assert in_short(run_with()) == ""
    assert in_short(run_with(entry(3), entry(0))).startswith("rank 3 6% backward +1 (")
    assert in_short(run_with(entry(None, phase="data"))) == "all 6% data"


def test_infiniband_is_summed_over_ports_and_unknown_where_a_count_is() -> None:
    ports = (PORT, replace(PORT, name="mlx5_1/1", rate_gbps=200.0, errors_min=None))
    found = reading(node("n1", links=ports), 0)
    assert (found["ib_gbps"], found["ib_errors"]) == (600.0, 0.0)
    found = reading(node("n1", links=(replace(PORT, errors_min=None),), gpus=None), 0)
    assert found["ib_errors"] is None
    assert "sm_mhz" not in found
