"""The rules over an invented hour: each planted incident makes its one alert, a healthy hour none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from dashboards.alerts.engine import changes
from dashboards.model.samples import Sample
from dashboards.model.state import initial_state
from dashboards.reduce import fold
from dashboards.simulation.faults import Incident
from dashboards.simulation.healthy import names
from tests.dashboards.simulated_hour import BEGIN_S, TEN, hour

ALERT_OF = {
    "power_drop": "gpu.idle", "stalled_steps": "run.stalled", "clock_step": "clock.step", "link_errors": "link.errors",
    "link_down": "link.down", "throttle": "gpu.throttle", "ecc": "gpu.ecc", "xid": "gpu.xid", "disk_filling": "disk.full",
    "wandb_unsent": "wandb.unsent", "node_dead": "node.down", "node_silent": "node.down", "gpu_lost": "gpu.missing",
}  # fmt: skip
OF_RUN = ("run.stalled", "wandb.unsent")
# Seconds after its beginning within which an incident is told.
LATEST_S = {"disk.full": 120, "run.stalled": 70, "gpu.idle": 25}


def fired(
    batches: Iterable[Sequence[Sample]], nodes: Sequence[str]
) -> list[tuple[float, str, str]]:
    """(second, id, node) of every alert that began; that it is still or again there is not told."""
    state = initial_state(nodes, now_s=BEGIN_S, source="nodes.txt")
    found = []
    for batch in batches:
        before = state.alerts
        state = fold(state, batch)
        for change in changes(before, state.alerts, state):
            if change.kind == "fire":
                at_s = state.now_s - BEGIN_S
                found += [(at_s, change.alert.id, node) for node in change.alert.nodes or ("",)]
    return found


def expected(incidents: Sequence[Incident], nodes: Sequence[str]) -> list[tuple[float, str, str]]:
    rows = []
    for incident in incidents:
        id = ALERT_OF[incident.kind]
        rows.append((incident.begin_s, id, "" if id in OF_RUN else nodes[incident.node - 1]))
    return sorted(rows)


def check(incidents: Sequence[Incident], nodes: Sequence[str], seed: int, gpus: int = 8) -> None:
    found = fired(hour(incidents, seed=seed, nodes=len(nodes), gpus=gpus), nodes)
    wanted = expected(incidents, nodes)
    assert [(id, node) for _, id, node in found] == [(id, node) for _, id, node in wanted]
    for (at_s, id, _), (begin_s, _, _) in zip(found, wanted, strict=True):
        assert begin_s <= at_s <= begin_s + LATEST_S.get(id, 15), (id, at_s - begin_s)


def on_few_nodes(incidents: Sequence[Incident], count: int, gpus: int) -> list[Incident]:
    return [
        replace(one, node=1 + place % count, gpu=one.gpu % gpus)
        for place, one in enumerate(incidents)
    ]


@pytest.mark.long
def test_ten_planted_incidents_make_ten_alerts_and_no_other() -> None:
    check(on_few_nodes(TEN, 3, 4), names(3), seed=0, gpus=4)


@pytest.mark.slow
def test_healthy_hour_makes_no_alert() -> None:
    assert fired(hour(nodes=3, gpus=4), names(3)) == []


MORE = (
    Incident("link_down", 1, 0, 30, 90),
    Incident("gpu_lost", 2, 6, 100, 160),
    Incident("node_silent", 3, 0, 170, 230),
    Incident("xid", 2, 1, 240, 400, size=79),
    Incident("gpu_lost", 2, 1, 240, 400),  # it fell off the bus: one matter with the Xid
)


@pytest.mark.long
def test_other_kinds_make_one_alert_each() -> None:
    found = fired(hour(MORE, nodes=3, seconds=300), names(3))
    assert [(id, node[-1]) for _, id, node in found] == [
        ("link.down", "1"), ("gpu.missing", "2"), ("node.down", "3"), ("gpu.xid", "2"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_full_size_hours(seed: int) -> None:
    check(TEN, names(), seed)
    assert fired(hour(seed=seed + 100), names()) == []
