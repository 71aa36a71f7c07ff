"""Who uses the GPUs, and with how much energy: what is not known is counted apart, never filled in."""

from __future__ import annotations

import pytest

from dashboards.export.metrics import METRICS, values
from dashboards.model.samples import Gpu, NodeDown, NodeSample, Process, Sample, Tick
from dashboards.model.state import State, initial_state
from dashboards.model.usage import Usage, node_totals, usage
from dashboards.reduce import fold

ALICE = Process(1, "alice", "python3", 0, run="run-7")
BOB = Process(2, "bob", "jupyter", 1)


def reading(
    at_s: float,
    *processes: Process,
    watts: tuple[float | None, ...] = (500.0, 100.0),
    util: tuple[float | None, ...] = (0.9, 0.0),
    joules: tuple[float | None, ...] = (None, None),
    node: str = "n1",
    is_known: bool = True,
    up_s: float | None = None,
) -> NodeSample:
    rows = enumerate(zip(watts, util, joules, strict=True))
    gpus = tuple(
        Gpu(index, power_w=power, util=share, energy_j=spent)
        for index, (power, share, spent) in rows
    )
    held = processes if is_known else None
    return NodeSample(node, at_s, gpus=gpus, processes=held, up_s=up_s)


def after(*samples: Sample, now_s: float | None = None) -> State:
    state = fold(initial_state(["n1", "n2"], now_s=0.0), samples)
    last = max(one.at_s for one in samples if isinstance(one, NodeSample))
    return fold(state, [Tick(last if now_s is None else now_s)])


def by(state: State, way: str = "job") -> dict[tuple[str, str, str], Usage]:
    return {(one.user, one.job, one.node): one for one in usage(state, way)}


def test_users_and_jobs_have_their_gpus_and_their_energy() -> None:
    rows = by(after(*(reading(float(at), ALICE, BOB) for at in range(11))))
    alice, bob = rows["alice", "run-7", ""], rows["bob", "jupyter", ""]
    assert (alice.gpus, alice.idle, alice.util, alice.power_w) == (1, 0, 0.9, 500.0)
    assert (alice.totals.energy_j, alice.totals.known_s) == (5000.0, 10.0)
    assert (alice.energy_kwh or 0) * 3.6e6 == 5000.0
    assert (bob.idle, bob.totals.idle_s, bob.totals.energy_j) == (1, 10.0, 1000.0)


def test_a_gap_is_unknown_energy_and_is_not_filled_in() -> None:
    state = after(
        reading(0.0, ALICE), reading(1.0, ALICE), reading(101.0, ALICE), reading(102.0, ALICE)
    )
    totals = by(state)["alice", "run-7", ""].totals
    assert (totals.energy_j, totals.known_s, totals.unknown_s) == (1000.0, 2.0, 100.0)


def test_counter_of_a_card_tells_its_energy_better_than_its_power() -> None:
    state = after(
        reading(0.0, ALICE, BOB, joules=(7000.0, None)),
        reading(1.0, ALICE, BOB, joules=(7640.0, None)),
        reading(2.0, ALICE, BOB, joules=(8200.0, None), watts=(None, 100.0)),
    )
    rows = by(state)
    assert rows["alice", "run-7", ""].totals.energy_j == 1200.0
    assert rows["alice", "run-7", ""].totals.unknown_s == 0.0
    assert rows["bob", "jupyter", ""].totals.energy_j == 200.0


def test_counter_knows_what_a_gap_took_and_a_change_of_holders_is_charged_to_nobody() -> None:
    before = reading(1.0, ALICE, BOB, joules=(1000.0, 500.0))
    now = reading(101.0, ALICE, joules=(51_000.0, 5500.0))
    state = after(reading(0.0, ALICE, BOB, joules=(500.0, 500.0)), before, now)
    rows = by(state)
    alice, bob, unknown = (
        rows[key].totals for key in (("alice", "run-7", ""), ("bob", "jupyter", ""), ("?", "", ""))
    )
    assert (alice.energy_j, alice.known_s, alice.unknown_s) == (50_500.0, 101.0, 0.0)
    assert (bob.energy_j, bob.known_s) == (0.0, 1.0)
    assert (unknown.energy_j, unknown.known_s, unknown.idle_s) == (5000.0, 100.0, 0.0)
    assert node_totals(state.nodes["n1"], state).energy_j == 55_500.0


@pytest.mark.parametrize(
    ("joules", "up_s", "known_s"),
    [(400.0, None, 0.0), (1e9, None, 0.0), (2000.0, 50.0, 0.0), (2000.0, 5000.0, 100.0)],
)
def test_counter_that_began_again_says_nothing_of_a_gap(
    joules: float, up_s: float | None, known_s: float
) -> None:
    samples = (
        reading(0.0, ALICE, joules=(1000.0, None)),
        reading(100.0, ALICE, joules=(joules, None), up_s=up_s),
    )
    totals = by(after(*samples))["alice", "run-7", ""].totals
    assert (totals.known_s, totals.unknown_s) == (known_s, 100.0 - known_s)


def test_counter_that_began_again_leaves_the_power_of_a_second() -> None:
    samples = (reading(float(at), ALICE, joules=(joules, None)) for at, joules in enumerate((9000.0, 3.0)))  # fmt: skip
    assert by(after(*samples))["alice", "run-7", ""].totals.energy_j == 500.0


def test_a_power_that_was_not_read_is_unknown_for_this_gpu_only() -> None:
    state = after(
        reading(0.0, ALICE, BOB),
        reading(1.0, ALICE, BOB, watts=(None, 100.0)),
        reading(2.0, ALICE, BOB),
    )
    rows = by(state)
    assert rows["alice", "run-7", ""].energy_kwh is None
    assert rows["alice", "run-7", ""].totals.unknown_s == 2.0
    assert rows["bob", "jupyter", ""].totals.energy_j == 200.0


def test_a_node_that_is_silent_holds_no_gpus_now_and_its_energy_is_unknown() -> None:
    samples = (reading(0.0, ALICE), reading(1.0, ALICE))
    down = NodeDown("n1", 2.0, "tcp", "no answer")
    row = by(after(*samples, down, now_s=601.0))["alice", "run-7", ""]
    assert (row.gpus, row.power_w, row.totals.energy_j, row.totals.unknown_s) == (
        0,
        None,
        500.0,
        600.0,
    )
    back = by(after(*samples, down, reading(601.0, ALICE)))["alice", "run-7", ""]
    assert back.totals == row.totals


def test_two_on_one_gpu_share_it_and_nobody_has_what_is_free() -> None:
    both = (ALICE, Process(3, "bob", "jupyter", 0))
    rows = by(after(reading(0.0, *both), reading(2.0, *both)))
    assert rows["alice", "run-7", ""].gpus == rows["bob", "jupyter", ""].gpus == 0.5
    assert rows["bob", "jupyter", ""].totals.energy_j == 500.0
    free = rows["-", "", ""]
    assert (free.gpus, free.idle, free.totals.idle_s, free.totals.energy_j) == (1, 0, 0.0, 200.0)


def test_holders_that_could_not_be_found_out_are_not_nobody() -> None:
    rows = by(after(reading(0.0, is_known=False), reading(1.0, is_known=False)))
    assert set(rows) == {("?", "", "")}
    assert rows["?", "", ""].idle == 0


def test_rows_of_users_and_nodes_add_up_to_those_of_jobs() -> None:
    samples = [
        reading(float(at), ALICE, BOB, node=name) for at in range(4) for name in ("n1", "n2")
    ]
    state = after(*samples)
    sums = [
        sum(one.totals.energy_j for one in usage(state, way)) for way in ("job", "user", "node")
    ]
    assert sums == [3600.0] * 3
    assert [one.node for one in usage(state, "node")] == ["n1", "n2"]
    assert node_totals(state.nodes["n1"], state).energy_j == 1800.0
    assert by(state, "user")["alice", "", ""].nodes == {"n1", "n2"}


def test_metrics_have_joules_by_user_and_job_and_none_where_nothing_is_known() -> None:
    state = after(reading(0.0, ALICE, BOB), reading(1.0, ALICE, BOB))
    found = {one.name: dict(values(one, state)) for one in METRICS if "energy" in one.name}
    assert found["usage_energy_joules_total"]["alice", "run-7"] == 500.0
    assert found["node_energy_joules_total"] == {("n1",): 600.0}  # n2 never answered


def test_a_metric_that_counts_never_falls_when_a_silent_node_tells_its_energy() -> None:
    samples = (reading(0.0, ALICE, joules=(0.0, None)), reading(1.0, ALICE, joules=(500.0, None)))
    silent = after(*samples, now_s=601.0)
    back = after(*samples, reading(601.0, ALICE, joules=(300_500.0, None)))
    (unknown,) = (one for one in METRICS if "energy_unknown" in one.name)
    assert by(silent)["alice", "run-7", ""].totals.unknown_s == 600.0
    assert dict(values(unknown, silent))["alice", "run-7"] == 0.0
    assert dict(values(unknown, back))["alice", "run-7"] == 0.0
    assert by(back)["alice", "run-7", ""].totals.energy_j == 300_500.0
