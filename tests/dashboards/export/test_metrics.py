"""One list of metrics for all; what is not known is no sample, and never 0."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dashboards.export.metrics import METRICS
from dashboards.model.samples import (
    READING,
    Gpu,
    NodeDown,
    NodeSample,
    RunOpened,
    RunRead,
    StepSample,
    Tick,
)
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from tests.dashboards.conftest import NOW, demo_state
from tests.dashboards.export.scraped import page, value
from tests.dashboards.runs import record


@pytest.mark.long
def test_metrics_of_the_demo() -> None:
    samples = page(demo_state())
    node = "ml-64-node-001"
    assert value(samples, "node_up", node=node) == 1
    assert value(samples, "node_up", node="ml-64-node-003") == 0
    assert 600 < (value(samples, "gpu_power_watts", node=node, gpu="3") or 0) < 710
    assert value(samples, "gpu_sm_clock_hertz", node=node, gpu="0") == 1980e6
    assert value(samples, "gpus_missing", node="ml-64-node-008") == 1
    assert value(samples, "run_step", run="015-STDiT3-XL-2")
    assert value(samples, "run_phase_seconds", run="015-STDiT3-XL-2", phase="encode") == pytest.approx(1.1)  # fmt: skip
    lost = {"id": "gpu.missing", "severity": "fail", "node": "ml-64-node-008", "part": "GPU 6"}
    assert value(samples, "alert_active", **lost) == 1


def test_what_is_not_known_has_no_sample() -> None:
    """Neither a figure that could not be read, nor the last one of a node that is silent or gone."""
    gpus = (Gpu(0, power_w=None, util=0.5), Gpu(1, error="GPU is lost"))
    state = initial_state(("n1", "n2", "n3"), now_s=NOW, source="nodes.txt")
    samples = [NodeSample(name, NOW, cpu=None, load1=3.0, gpus=gpus) for name in ("n1", "n2", "n3")]
    state = fold(state, [*samples, Tick(NOW), NodeDown("n3", NOW + 5, "tcp", "refused")])
    state = fold(state, [replace(samples[0], at_s=NOW + 5), Tick(NOW + 5)])
    found = page(state)
    about = {name for name, labels in found if ("node", "n1") in labels}
    assert "clusterctl_node_load1" in about
    assert "clusterctl_gpu_utilization_ratio" in about
    assert about.isdisjoint(["clusterctl_node_cpu_ratio", "clusterctl_gpu_power_watts"])
    assert value(found, "node_reading_age_seconds", node="n2") == 5.0
    for name in ("n2", "n3"):
        left = {metric for metric, labels in found if ("node", name) in labels}
        assert left <= {"clusterctl_node_up", "clusterctl_node_reading_age_seconds", "clusterctl_alert_active"}  # fmt: skip
        assert value(found, "node_up", node=name) == 0


def test_figures_of_steps_are_those_that_the_newest_steps_know() -> None:
    """What is measured at times is the last one known, losses by part are means."""
    bands = ({"0-250": 0.2, "750-1000": 0.6}, {"0-250": 0.4})
    steps = [
        record(1, update_ratio=2e-3, loss_by_time=bands[0], loss_by_bucket={"144p 51f": 0.5}),
        record(2, loss_by_time=bands[1], mfu=0.4, memory_reserved_bytes=1 << 30),
    ]
    opened = RunOpened("outputs/001-x", "001-x", NOW)
    state = fold(initial_state((), now_s=NOW), [opened, *(StepSample(one, NOW) for one in steps)])
    found = page(state)
    assert value(found, "run_step", run="001-x") == 2
    assert value(found, "run_update_ratio", run="001-x") == 2e-3
    assert value(found, "run_mfu_ratio", run="001-x") == 0.4
    assert value(found, "run_memory_reserved_bytes", run="001-x") == 1 << 30
    assert value(found, "run_loss_by_time", run="001-x", band="0-250") == pytest.approx(0.3)
    assert value(found, "run_loss_by_time", run="001-x", band="750-1000") == 0.6
    assert value(found, "run_loss_by_bucket", run="001-x", bucket="144p 51f") == 0.5
    assert not [name for name, _ in found if "ema_gap" in name]  # not known: no sample


def test_run_that_is_not_read_to_its_end_has_no_figures_of_earlier() -> None:
    opened = RunOpened("outputs/001-x", "001-x", NOW)
    samples = [opened, RunRead(NOW, READING), StepSample(record(1), NOW)]
    state = fold(initial_state((), now_s=NOW), samples)
    of_run = {name: value for (name, _), value in page(state).items() if "_run_" in name}
    assert of_run == {"clusterctl_run_read": 0.0}
    found = page(fold(state, [RunRead(NOW)]))
    assert value(found, "run_read", run="001-x") == value(found, "run_step", run="001-x") == 1


def test_run_alone_says_nothing_of_nodes() -> None:
    state = initial_state((), now_s=NOW)
    assert {name for name, _ in page(state)} == {
        "clusterctl_build_info", "clusterctl_state_age_seconds", "clusterctl_alerts",
    }  # fmt: skip


def test_names_follow_prometheus() -> None:
    assert len({metric.full_name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help
        assert bool(metric.row) == bool(metric.panel) == bool(metric.legend), metric.name
