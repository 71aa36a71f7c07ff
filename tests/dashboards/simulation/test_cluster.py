from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.model.samples import EventSample, NodeDown, NodeSample, Sample, StepSample, Tick
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from tests.dashboards.simulated_hour import BEGIN_S, TEN, hour

NODE_KINDS = (
    "power_drop", "clock_step", "link_errors", "link_down", "throttle", "ecc", "xid", "disk_filling",
    "node_silent", "gpu_lost",
)  # fmt: skip


def played(*incidents: Incident, seconds: int = 40, seed: int = 0) -> list[Sample]:
    return [s for said in hour(incidents, seed=seed, nodes=2, gpus=2, seconds=seconds) for s in said]  # fmt: skip


def of(samples: list[Sample], node: int) -> list[NodeSample]:
    name = names(2)[node - 1]
    return [s for s in samples if isinstance(s, NodeSample) and s.node == name]


def test_same_seed_gives_the_same_hour_and_another_seed_another() -> None:
    assert played(TEN[0]) == played(TEN[0])
    assert played() != played(seed=1)


@pytest.mark.parametrize("kind", NODE_KINDS)
def test_incident_changes_its_own_node_while_it_lasts(kind: str) -> None:
    faulty = played(Incident(kind, 2, 1, 10, 20, size=74))
    healthy = played()
    assert of(faulty, 1) == of(healthy, 1) or kind == "throttle"  # which slows the whole run down
    before = [s for s in of(faulty, 2) if s.at_s < BEGIN_S + 10]
    assert before == [s for s in of(healthy, 2) if s.at_s < BEGIN_S + 10]
    during = [s for s in of(faulty, 2) if BEGIN_S + 10 <= s.at_s < BEGIN_S + 20]
    assert during != [s for s in of(healthy, 2) if BEGIN_S + 10 <= s.at_s < BEGIN_S + 20]


def test_stalled_run_writes_no_step_and_its_gpus_wait() -> None:
    said = played(Incident("stalled_steps", begin_s=10, end_s=30))
    steps = [s.at_s - BEGIN_S for s in said if isinstance(s, StepSample)]
    assert not [at_s for at_s in steps if 12 < at_s < 30]
    assert [at_s for at_s in steps if at_s >= 30]
    waiting = next(s for s in of(said, 1) if s.at_s == BEGIN_S + 25)
    assert waiting.gpus is not None
    assert all((gpu.power_w or 0) < 150 and gpu.util == 1.0 for gpu in waiting.gpus)


def test_dead_node_is_an_alarm_after_ten_seconds_and_comes_back() -> None:
    said = played(Incident("node_dead", 2, begin_s=5, end_s=30, size=10))
    down = [s.at_s - BEGIN_S for s in said if isinstance(s, NodeDown)]
    assert down[0] == 15
    assert [s.at_s - BEGIN_S for s in of(said, 2)] == [*range(5), *range(30, 40)]


def test_unsent_figures_are_an_event_of_the_run() -> None:
    said = played(Incident("wandb_unsent", begin_s=5, end_s=30, size=240))
    assert [s.event.data["unsent"] for s in said if isinstance(s, EventSample) and s.event.name == "tracking"] == [240]  # fmt: skip


def test_incident_may_come_again() -> None:
    often = replace(TEN[0], begin_s=10, end_s=15, every_s=60)
    assert [often.since(at_s) for at_s in (9, 10, 15, 70, 74, 75)] == [None, 0, None, 0, 4, None]


def test_every_second_ends_with_the_time() -> None:
    assert all(isinstance(said[-1], Tick) for said in hour(nodes=1, gpus=1, seconds=5))
