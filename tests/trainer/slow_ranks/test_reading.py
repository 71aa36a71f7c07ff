"""What a rank reads of itself and its node; what cannot be read is absent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.runlog.slow_reasons import TABLE
from trainer.slow_ranks import reading


@pytest.mark.long
def test_a_reading_of_this_machine_has_names_of_the_table_and_shares() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        reader = reading.Reader(torch.device("cpu"), seconds=0.5)
        assert set(reader.taken()) == {"host"}  # it does not wait
        until = time.monotonic() + 30
        while "foreign_cores" not in (found := reader.taken()) and time.monotonic() < until:
            time.sleep(0.05)
    assert found.keys() - {"host", "foreign_name"} <= {row.name for row in TABLE}
    assert 0.0 <= found["cpu_wait"] <= 1.1
    assert 0.0 <= found["foreign_cores"] <= 2.0 * (os.cpu_count() or 1)
    assert found["decoders_disk"] + found["decoders_busy"] <= 1.0


@pytest.mark.parametrize(("step_s", "seconds"), [(0.1, 3.0), (4.0, 8.0), (60.0, 20.0)])
def test_a_reading_lasts_two_steps_within_limits(step_s: float, seconds: float) -> None:
    assert reading.seconds_of(step_s) == seconds


@pytest.mark.long
def test_a_process_that_shares_its_processor_waits_for_it() -> None:
    """More processes that never wait than processors: it is seen in what the decoders wait."""
    words = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(words) for _ in range(len(os.sched_getaffinity(0)) + 1)]
    try:
        until = time.monotonic() + 30

        def waited_s() -> float:
            now = reading._waits_of_children()
            return max(now[one.pid] for one in busy)

        while waited_s() < 0.2 and time.monotonic() < until:
            time.sleep(0.02)
        assert waited_s() >= 0.2
        assert os.getpid() in reading._waits()
    finally:
        for one in busy:
            one.kill()
        for one in busy:
            one.wait()


def test_its_own_processes_are_not_foreign() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        own = reading._tree()
        assert {os.getpid(), child.pid} <= own
        assert child.pid not in {pid for pid, _ in reading._processor_s(own)}
    finally:
        child.communicate()


@pytest.mark.parametrize(
    ("groups", "stats", "held_s"),
    [
        ("0::/job/rank\n", {"job/rank": "throttled_usec 500000", "job": "throttled_usec 2000000"}, 2.5),
        ("3:memory:/a\n1:cpu,cpuacct:/a\n0::/\n", {"cpu,cpuacct/a": "throttled_time 3000000000"}, 3.0),
        ("1:cpu:/\n", {"cpu": "nr_periods 0\nthrottled_time 0"}, 0.0),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_quotas_of_control_groups_and_of_those_above_count(
    tmp_path: Path, groups: str, stats: dict[str, str], held_s: float | None
) -> None:
    for name, text in stats.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cpu.stat").write_text(f"nr_throttled 1\n{text}\n")
    assert reading.held_back_s(groups, tmp_path) == held_s


def test_ports_of_infiniband_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_IB", tmp_path)
    assert reading._infiniband_rate() == {}
    for card, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        counters = tmp_path / card / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters.parent / "state").write_text(f"{state}\n")
        (counters.parent / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (counters / "symbol_error").write_text("7\n")
        (counters / "port_rcv_data").write_text("123456\n")
    assert reading._infiniband_rate() == {"ib_gbps": 400.0}
    assert reading._counters()["ib_errors"] == 14.0


class NVMLError(Exception):
    pass


def test_a_card_tells_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise NVMLError

    nv = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x48,
        nvmlDeviceGetClockInfo=lambda _, kind: 1410,
        nvmlDeviceGetEnforcedPowerLimit=refuses,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=os.getpid()),
            SimpleNamespace(pid=1),
        ],
        nvmlDeviceGetCurrPcieLinkWidth=lambda _: 8,
        nvmlDeviceGetCurrPcieLinkGeneration=lambda _: 5,
        nvmlDeviceGetNvLinkState=lambda _, link: 1 if link < 16 else refuses(),
    )
    assert reading.gpu_figures(nv, None) == {
        "throttle": "hardware slowdown, hardware thermal slowdown",
        "gpu_processes": 1.0,
        "pcie_width": 8.0,
        "pcie_gen": 5.0,
        "nvlinks": 16.0,
    }
    assert reading._sm_mhz(nv, None) == 1410.0
