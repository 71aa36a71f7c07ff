"""A reason is a difference from the others; where none is known, that is said."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.runlog.slow_reasons import COMMON, TABLE, common_reasons, reasons, unread

GOOD: dict[str, Any] = {
    "host": "n1", "throttle": "", "sm_mhz": 1980.0, "power_limit_w": 700.0, "gpu_processes": 0.0,
    "pcie_width": 16.0, "pcie_gen": 5.0, "nvlinks": 18.0, "quota": 0.0, "cpu_wait": 0.01,
    "steal": 0.0, "cpu_mhz": 3700.0, "foreign_cores": 0.3, "memory_stall": 0.0,
    "decoders_disk": 0.02, "decoders_cpu_wait": 0.01, "io_stall": 0.01, "decoders_busy": 0.4, "ib_errors": 0.0, "ib_gbps": 3200.0,
}  # fmt: skip
OTHERS = [GOOD | {"host": f"n{node}"} for node in range(2, 8)]

CASES = [
    ({"throttle": "hw thermal"}, "backward", "its GPU is slowed down: hw thermal"),
    ({"sm_mhz": 1410.0}, "backward", "its GPU runs at 1410 MHz, the others at 1980"),
    ({"power_limit_w": 500.0}, "forward", "its GPU's power limit is 500 W, the others' 700"),
    ({"gpu_processes": 1.0}, "forward", "1 other processes use its GPU, the others' 0"),
    ({"pcie_width": 4.0}, "encode", "its GPU has 4 PCIe lanes, the others 16"),
    ({"pcie_gen": 3.0}, "encode", "its GPU's PCIe is generation 3, the others' 5"),
    ({"nvlinks": 16.0}, "backward", "its GPU has 16 NVLinks up, the others 18"),
    ({"quota": 0.3}, "data", "its control group's CPU quota holds it back 30% of the time"),
    ({"cpu_wait": 0.4}, "forward", "its process waits for a CPU 40% of the time, the others 1%"),
    ({"steal": 0.2}, "data", "the host of its virtual machine takes 20% of the CPUs' time"),
    ({"cpu_mhz": 1200.0}, "data", "its node's fastest CPU runs at 1200 MHz, the others' at 3700"),
    ({"foreign_cores": 8.0, "foreign_name": "stress, pid 7: 8.0 CPUs"}, "forward",
     "other programs use 8.0 CPUs of its node, on the others 0.3 (stress, pid 7: 8.0 CPUs)"),
    ({"memory_stall": 0.3}, "forward", "its node waits for memory 30% of the time, the others 0%"),
    ({"decoders_disk": 0.8}, "data", "its decoders wait for storage 80% of the time, the others' 2%"),
    ({"io_stall": 0.6}, "data", "its node waits for storage 60% of the time, the others 1%"),
    ({"decoders_cpu_wait": 0.5, "foreign_name": "stress, pid 7: 1.0 CPUs"}, "data",
     "its decoders wait for a CPU 50% of the time, the others' 1% (stress, pid 7: 1.0 CPUs)"),
    ({"decoders_busy": 1.0}, "data", "its decoders compute 100% of the time, the others' 40%"),
    ({"ib_errors": 40.0}, "data", "its InfiniBand ports count 40 errors a second, the others' 0"),
    ({"ib_gbps": 2800.0}, "data", "its node's InfiniBand ports have 2800 Gbit/s, the others' 3200"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "phase", "text"), CASES)
def test_a_difference_is_a_reason(changed: dict[str, Any], phase: str, text: str) -> None:
    (found,) = reasons(GOOD | changed, OTHERS, phase)
    assert found.text.startswith(text)
    assert found.name == next(iter(changed))


def test_every_row_has_a_case() -> None:
    assert {next(iter(changed)) for changed, _, _ in CASES} == {row.name for row in TABLE}


@pytest.mark.parametrize("phase", ["data", "encode", "forward", "backward"])
def test_nothing_that_differs_is_no_reason(phase: str) -> None:
    assert reasons(GOOD, OTHERS, phase) == ()
    assert unread(GOOD, OTHERS, phase) == ()


def test_what_the_others_have_too_is_no_reason() -> None:
    bad = {name: value for changed, _, _ in CASES for name, value in changed.items()}
    assert reasons(GOOD | bad, [other | bad for other in OTHERS], "backward") == ()


def test_what_could_not_be_read_is_no_reason_and_is_listed() -> None:
    assert reasons({"host": "n1"}, OTHERS, "backward") == ()
    assert unread({"host": "n1"}, OTHERS, "backward") == ("GPU", "quota", "CPU", "pressure")
    assert unread(GOOD, [], "data") == ("GPU", "quota", "CPU", "pressure", "decoders", "InfiniBand")


def test_ranks_of_one_node_tell_nothing_about_it() -> None:
    beside = [GOOD | {"foreign_cores": 0.0, "host": "n1"} for _ in range(7)]
    assert reasons(GOOD | {"foreign_cores": 9.0}, beside, "forward") == ()


COMMON_CASES = [
    ({"quota": 0.4}, "forward", "CPU quotas of their control groups hold them back 40% of the time"),
    ({"cpu_wait": 0.5, "foreign_name": "stress, pid 7: 0.7 CPUs"}, "forward",
     "their processes wait for a CPU 50% of the time (stress, pid 7: 0.7 CPUs)"),
    ({"steal": 0.2}, "data", "the hosts of their virtual machines take 20% of the CPUs' time"),
    ({"foreign_cores": 8.0}, "forward", "other programs use 8.0 CPUs of each node"),
    ({"memory_stall": 0.3}, "forward", "their nodes wait for memory 30% of the time"),
    ({"decoders_disk": 0.8}, "data", "their decoders wait for storage 80% of the time"),
    ({"decoders_cpu_wait": 0.5}, "data", "their decoders wait for a CPU 50% of the time"),
    ({"io_stall": 0.6}, "data", "their nodes wait for storage 60% of the time"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "phase", "text"), COMMON_CASES)
def test_what_slows_all_ranks_is_large_in_the_middle_of_them(
    changed: dict[str, Any], phase: str, text: str
) -> None:
    slowed = [one | changed for one in OTHERS]
    (found,) = common_reasons(slowed, phase)
    assert (found.name, found.text, found.others) == (next(iter(changed)), text, None)
    assert common_reasons([*OTHERS, slowed[0]], phase) == ()  # one rank is not all
    assert common_reasons([{}, {}, {}, slowed[0]], phase) == ()  # nothing is known of most


def test_every_common_row_has_a_case() -> None:
    assert [next(iter(changed)) for changed, _, _ in COMMON_CASES] == [one.name for one in COMMON]


def test_slow_data_are_not_explained_by_the_clock_of_a_gpu() -> None:
    assert reasons(GOOD | {"sm_mhz": 900.0}, OTHERS, "data") == ()
