"""nvidia-smi -q, nvlink, topo and NVML's answers."""

from __future__ import annotations

import json
import re

import pytest

from checks.facts import Fleet, GpuHealth, Unknown
from checks.parsers import gpu_health as parse
from checks.parsers.census import parse_all_gpus
from checks.parsers.nvml import parse_nvml
from checks.runner import run_checks
from tests.captures import fake_nvidia_smi as fake
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking, node


def first(name: str) -> GpuHealth:
    found = parse.read_details(recorded(f"nvidia-smi/{name}.q.txt"))
    assert not isinstance(found, Unknown), found
    return next(iter(found.values()))


def test_hopper_prints_degrees_left_and_not_a_limit() -> None:
    assert first("h100-sxm-x8").margin_c == 59  # 57 left, slowdown at -2
    assert first("a100-sxm-x4").margin_c == 64
    text = "GPU 00000000:01:00.0\n    Temperature\n        GPU Current Temp : 80 C\n        GPU Slowdown Temp : 87 C\n"
    found = parse.read_details(text)
    assert not isinstance(found, Unknown)
    assert found["0000:01:00.0"].margin_c == 7  # older cards print absolute limits


@pytest.mark.parametrize(("name", "count", "vbios"), [
    ("h100-sxm-x8", 8, "96.00.74.00.01"), ("h100-nvl-x2", 2, "96.00.74.00.11"),
    ("a100-sxm-x4", 4, "92.00.9E.00.02"),
])  # fmt: skip
def test_recorded_machines(name: str, count: int, vbios: str) -> None:
    found = parse.read_details(recorded(f"nvidia-smi/{name}.q.txt"))
    assert not isinstance(found, Unknown)
    assert len(found) == count
    # One A100 of the recording really waits for a remap.
    pending = {bus for bus, health in found.items() if health.remap_pending is not False}
    assert pending == ({"0000:9e:00.0"} if name.startswith("a100") else set())
    for health in found.values():
        assert health.vbios == vbios
        assert (health.ecc, health.mig, health.persistence) == (True, False, True)
        assert (health.uncorrected_volatile, health.sram_uncorrected_aggregate) == (0, 0)
        assert health.remap_failure is False
        assert (health.pcie_width, health.pcie_width_max) == (16, 16)
        assert health.throttle == ("idle",)


def test_what_an_older_driver_does_not_say_is_unknown() -> None:
    assert isinstance(first("h100-nvl-x2").recovery_action, Unknown)
    assert first("h100-sxm-x8").recovery_action == "None"
    assert isinstance(first("a100-sxm-x4").fabric_state, Unknown)


def test_bad_values_are_seen() -> None:
    text = fake.details(fake.h100(2), change={1: {
        "Remapped Rows/Pending": "Yes", "Volatile/DRAM Uncorrectable": "3",
        "Clocks Event Reasons/HW Thermal Slowdown": "Active", "GPU Recovery Action": "Reset",
        "ECC Mode/Current": "Disabled", "Fabric/State": "In Progress", "Compute Mode": "Prohibited",
    }})  # fmt: skip
    found = parse.read_details(text)
    assert not isinstance(found, Unknown)
    good, bad = found.values()
    assert good.uncorrected_volatile == 0
    assert (bad.remap_pending, bad.uncorrected_volatile, bad.recovery_action) == (True, 3, "Reset")
    assert bad.throttle == ("idle", "hw thermal")
    assert (bad.ecc, bad.fabric_state, bad.compute_mode) == (False, "In Progress", "Prohibited")


def test_plain_table_and_foreign_tools_are_unknown() -> None:
    for name in (
        "h100-sxm-x8.table",
        "h100-nvl-x2.table",
        "a100-sxm-x4.table",
        "mi300x-x4.q",
        "mi300x-x4.table",
    ):
        assert isinstance(parse.read_details(recorded(f"nvidia-smi/{name}.txt")), Unknown)
    assert isinstance(parse.read_details(recorded("nvidia-smi/driver-failed.txt")), Unknown)


def test_nvlink_states() -> None:
    all_up = parse.read_nvlinks(recorded("nvlink/nvlink-s.a100-x8.txt"))
    assert not isinstance(all_up, Unknown)
    assert [(one.active, one.inactive) for one in all_up] == [(12, ())] * 8
    good = parse.read_nvlinks(recorded("nvlink/good_nvlink_status.txt"))
    assert not isinstance(good, Unknown)
    assert (good[0].gpu, good[0].active, good[0].speed_gbytes) == (7, 12, 25.0)
    bad = parse.read_nvlinks(recorded("nvlink/bad_nvlink_status.txt"))
    assert not isinstance(bad, Unknown)
    assert (bad[0].active, bool(bad[0].inactive)) == (0, True)
    some = parse.read_nvlinks("GPU 0: X (UUID: u)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n")
    assert not isinstance(some, Unknown)
    assert some[0].inactive == (1,)


def test_topology_with_and_without_cards() -> None:
    for name in ("h100x8-nic5", "h100x8-no-nic"):
        pairs = parse.read_topology(recorded(f"topo/topo-m.{name}.txt"))
        assert not isinstance(pairs, Unknown)
        assert pairs["0-7"] == "NV18"
        assert pairs.get("2-NIC1") == ("PIX" if "nic5" in name else None)


def test_nvml_answer_becomes_the_same_facts() -> None:
    row = {
        "index": 0, "uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "bus_id": "00000000:18:00.0",
        "power_mw": 100890, "power_limit_mw": 700000, "memory_used": 1 << 20, "memory_total": 80 << 30,
        "utilization": 0, "temperature": 30, "margin_c": 59, "vbios": "96", "persistence": 1, "mig": 0,
        "compute_mode": 0, "ecc": 1, "uncorrected_volatile": 0, "throttle": 0x41, "recovery": 0,
        "sram_uncorrected_aggregate": {"error": "Not Supported"}, "links": [1, 1, 0],
        "processes": [[77, 1 << 30]],
    }  # fmt: skip
    text = json.dumps({"driver": "565.57.01", "cuda": "12.7", "gpus": [row]})
    owners = ended("77\t1000\talice\t60\tpython train.py\t?\t?")
    facts = parse_nvml(ended(text), owners)
    assert facts is not None
    (gpu,) = facts.gpus
    assert (gpu.power_w, gpu.driver, facts.state) == (100.89, "565.57.01", "ok")
    assert not isinstance(gpu.health, Unknown)
    assert (gpu.health.throttle, gpu.health.mig, gpu.health.recovery_action) == (
        ("idle", "hw thermal"), False, "None",
    )  # fmt: skip
    assert isinstance(gpu.health.sram_uncorrected_aggregate, Unknown)
    assert not isinstance(facts.nvlinks, Unknown)
    assert facts.nvlinks[0].inactive == (2,)
    assert not isinstance(facts.processes, Unknown)
    assert (facts.processes[0].user, facts.processes[0].name) == ("alice", "python")


def test_nvidia_smi_speaks_where_nvml_does_not() -> None:
    for nvml in (None, ended("", 1, "OSError: libnvidia-ml.so.1"), lacking("timeout", "no end")):
        assert parse_nvml(nvml) is None
    sections = {
        "nvml": ended("", 1), "gpus": ended(fake.h100(2)), "gpu_details": ended(fake.details(fake.h100(2))),
        "nvlink": ended(fake.nvlinks(fake.h100(2))), "fabric_manager": ended("inactive\n", 3),
    }  # fmt: skip
    facts = parse_all_gpus(sections)
    assert [isinstance(gpu.health, GpuHealth) for gpu in facts.gpus] == [True, True]
    assert facts.fabric_manager == "inactive"
    assert isinstance(
        parse_all_gpus({**sections, "gpu_details": lacking()}).gpus[0].health, Unknown
    )


def of_rack(name: str):
    facts = parse_all_gpus(
        {
            "gpus": ended(recorded(f"nvidia-smi/{name}.gpus.csv")),
            "gpu_details": ended(recorded(f"nvidia-smi/{name}.q.txt")),
        }
    )
    return Fleet((node("n1", gpus=facts),))


def test_fabric_that_is_complete_and_not_healthy_fails_with_the_part() -> None:
    (found,) = run_checks(of_rack("gb200-fabric-unhealthy"), only=["gpu.fabric"]).findings
    assert found.verdict.value == "FAIL"
    assert found.evidence == "GPU 0,1: the fabric is not healthy: Route Unhealthy: True"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("Summary                                    : Healthy", "PASS"),
        ("Bandwidth                                  : Degraded", "FAIL"),
        ("Incorrect Configuration                    : Incorrect SystemGuid", "FAIL"),
        ("Route Recovery in progress                 : True", "WARN"),
        ("Summary                                    : Limited Capacity", "WARN"),
    ],
)
def test_each_part_of_a_fabrics_health_counts(line: str, verdict: str) -> None:
    name = line.partition(":")[0].strip()
    text = recorded("nvidia-smi/gb200-fabric-unhealthy.q.txt")
    text = text.replace(": Unhealthy", ": Healthy").replace(
        "Route Unhealthy                            : True",
        "Route Unhealthy                            : False",
    )
    text = re.sub(rf"{name} +: .*", line, text)
    csv = recorded("nvidia-smi/gb200-fabric-unhealthy.gpus.csv")
    facts = parse_all_gpus(
        {"gpus": ended(csv), "gpu_details": ended(text), "nvswitch": ended("#devices\t9\n")}
    )
    (found,) = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.fabric"]).findings
    assert found.verdict.value == verdict


def test_repair_of_a_channel_that_waits_wants_a_reset() -> None:
    fleet = of_rack("b200-channel-repair")
    (found,) = run_checks(fleet, only=["gpu.remap"]).findings
    assert (found.verdict.value, found.action.value) == ("FAIL", "reset-gpu")
    assert found.evidence == "GPU 0,1: a memory channel waits to be repaired"


def test_errors_of_cards_before_ampere_are_counted() -> None:
    text = """GPU 00000000:01:00.0
    ECC Errors
        Volatile
            Single Bit
                Device Memory : 2
                Total : 2
            Double Bit
                Device Memory : 1
                Total : 1
        Aggregate
            Double Bit
                Total : 7
"""
    found = parse.read_details(text)
    assert not isinstance(found, Unknown)
    health = found["0000:01:00.0"]
    assert (health.corrected_volatile, health.uncorrected_volatile) == (2, 1)
