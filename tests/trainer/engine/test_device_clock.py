"""Phases of a GPU are the device's time, read without a synchronisation of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.engine.simulated_device import Device
from trainer.engine.device_clock import DeviceClock, clock_for
from trainer.engine.step_figures import StepFigures, idle_and_slowest
from trainer.runlog.telemetry import PHASES, Clock

LAUNCH_MS = 0.01


def clock_of(device: Device, *, forward_is_local: bool = True) -> DeviceClock:
    return DeviceClock(None, make_event=device.event, forward_is_local=forward_is_local)


def microbatch(
    device: Device,
    clock: DeviceClock,
    data_ms: float = 3.0,
    encode_ms: float = 20.0,
    forward_ms: float = 100.0,
    backward_ms: float = 200.0,
    wait_ms: float = 50.0,
) -> None:
    """`data_ms` on the host, the others on the device; `wait_ms` for the gradients of others."""
    with clock.phase("data", 1):
        device.wait_on_host(data_ms)
    with clock.phase("encode", 1):
        device.launch(encode_ms)
    with clock.phase("forward", 1):
        device.launch(forward_ms)
    with clock.phase("backward", 1):
        device.launch(backward_ms)
        clock.mark_computed()
        device.launch(wait_ms)


def update(device: Device, clock: DeviceClock, update_ms: float = 30.0) -> None:
    with clock.phase("optimizer", 1):
        device.launch(update_ms)


def test_phases_are_the_device_s_seconds_and_sum_to_the_step() -> None:
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock)
    update(device, clock)
    assert device.host_ms < 5  # all of it was launched ahead
    device.synchronise()
    seconds = clock.take()
    expected = {"data": 3, "encode": 20, "forward": 100, "backward": 250, "optimizer": 30}
    for phase in PHASES:
        wanted_s = expected.get(phase, 0) / 1e3
        assert seconds[phase] == pytest.approx(wanted_s, abs=LAUNCH_MS / 1e3), phase
    assert sum(seconds.values()) == pytest.approx(device.host_ms / 1e3)


def test_nothing_is_read_before_the_step_has_synchronised() -> None:
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock)
    update(device, clock)
    assert device.known_ms == 0  # nothing has asked the device to be done
    with pytest.raises(RuntimeError, match="not ready"):
        clock.take()


def test_a_wait_of_the_host_beside_the_device_s_work_is_no_phase() -> None:
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock, data_ms=3)
    microbatch(device, clock, data_ms=40)  # the device has 370 ms of the first one left
    device.synchronise()
    seconds = clock.take()
    assert seconds["data"] == pytest.approx(0.003, abs=1e-4)
    assert clock.own_s == pytest.approx(0.003 + 2 * 0.320, abs=1e-4)


def test_a_wait_of_the_host_that_keeps_the_device_idle_is_one() -> None:
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock, data_ms=3)
    microbatch(device, clock, data_ms=1000)
    device.synchronise()
    ahead_ms = 370  # of work, while the host began to wait
    assert clock.take()["data"] == pytest.approx((3 + 1000 - ahead_ms) / 1e3, abs=1e-3)


def test_own_work_ends_where_the_rank_waits_for_others() -> None:
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock, wait_ms=500)
    update(device, clock)
    device.synchronise()
    clock.take()
    assert clock.own_s == pytest.approx((3 + 20 + 100 + 200) / 1e3, abs=1e-4)


def test_own_work_ends_at_the_first_gather_where_forward_gathers() -> None:
    device = Device()
    clock = clock_of(device, forward_is_local=False)
    with clock.phase("data", 1):
        device.wait_on_host(3)
    with clock.phase("encode", 1):
        device.launch(20)
    with clock.phase("forward", 1):
        device.launch(100)
    with clock.phase("backward", 1):
        device.launch(200)
    device.synchronise()
    clock.take()
    assert clock.own_s == pytest.approx(0.023, abs=1e-4)


def figures(**work: float) -> StepFigures:
    """Of one rank; all of a step wait for the slowest, so its length is the same on all."""
    device = Device()
    clock = clock_of(device)
    microbatch(device, clock, **work)
    device.synchronise()
    clock.take()
    return StepFigures(own_s=clock.own_s, step_s=device.host_ms / 1e3)


def test_the_slowest_rank_is_the_one_that_the_others_wait_for() -> None:
    ranks = [
        figures(forward_ms=100, wait_ms=150),
        figures(data_ms=53, forward_ms=150, wait_ms=50),  # late data and a slow device
        figures(forward_ms=100, wait_ms=150),
    ]
    assert len({round(rank.step_s, 3) for rank in ranks}) == 1
    share, slowest = idle_and_slowest(ranks, on_device=True)
    assert slowest == 1
    # two of three ranks wait 100 ms of a step of 473
    assert share == pytest.approx(2 / 3 * 100 / 473, abs=0.001)


def test_the_next_step_uses_the_same_events() -> None:
    device = Device()
    clock = clock_of(device)
    for _ in range(3):
        microbatch(device, clock)
        update(device, clock)
        device.synchronise()
        assert clock.take()["forward"] == pytest.approx(0.1, abs=1e-4)
    assert len(device.events) == 2 * 5 + 1


def test_a_step_that_fails_in_a_phase_leaves_the_clock_whole() -> None:
    device = Device()
    clock = clock_of(device)

    def fail() -> None:
        with clock.phase("forward", 1):
            device.launch(5)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    clock.mark_computed()  # of no phase
    device.synchronise()
    assert clock.take()["forward"] == pytest.approx(0.005, abs=1e-4)
    assert clock.own_s == pytest.approx(0.005, abs=1e-4)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_run_on_a_gpu_is_timed_by_the_device_and_its_engine_marks_it(kind: str) -> None:
    engine: Any = SimpleNamespace(
        device=torch.device(kind), forward_is_local=False, on_computed=None
    )
    clock = clock_for(engine, None)
    if kind == "cpu":
        assert type(clock) is Clock
        assert engine.on_computed is None
    else:
        assert isinstance(clock, DeviceClock)
        assert not clock.forward_is_local
        assert engine.on_computed == clock.mark_computed
