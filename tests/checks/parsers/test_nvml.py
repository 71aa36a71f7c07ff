"""The census's questions to NVML, asked of a stand-in with pynvml's own constants and structures."""

from __future__ import annotations

import ctypes
import sys
import types

import pynvml
import pytest

from checks.facts import Fleet, GpuHealth, Unknown
from checks.parsers.census import parse_all_gpus
from checks.parsers.nvml import fabric_health
from checks.runner import run_checks
from clusterctl.payload.collect import nvml as collect_nvml
from tests.checks.captures import recorded
from tests.checks.sections import ended, lacking, node, pci_devices

ANSWERS = {
    "nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetPciInfo": types.SimpleNamespace(busId="00000000:18:00.0"),
    "nvmlDeviceGetPowerUsage": 100890, "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
    "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=1 << 20, total=80 << 30),
    "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=0), "nvmlDeviceGetTemperature": 30,
    "nvmlDeviceGetTemperatureThreshold": 89, "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
    "nvmlDeviceGetInforomImageVersion": "G520", "nvmlDeviceGetGspFirmwareVersion": "565.57.01",
    "nvmlDeviceGetPersistenceMode": 1, "nvmlDeviceGetMigMode": [0, 0], "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetVirtualizationMode": 0, "nvmlDeviceGetTotalEccErrors": 0, "nvmlDeviceGetMemoryErrorCounter": 0,
    "nvmlDeviceGetRemappedRows": [1, 0, 0, 0], "nvmlDeviceGetRepairStatus": [0, 0], "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 16, "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5, "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxClockInfo": 1980, "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlSystemGetDriverVersion": "565.57.01", "nvmlSystemGetCudaDriverVersion_v2": 12070,
}  # fmt: skip


class Library:
    """pynvml with answers in the place of the driver; `missing` are functions of a newer library."""

    def __init__(self, count: int = 2, missing: tuple[str, ...] = (), **answers: object) -> None:
        self.answers = {**ANSWERS, "nvmlDeviceGetCount": count, "nvmlInit": None, **answers}
        self.missing = missing

    def __getattr__(self, name: str):
        if name in self.missing:
            raise AttributeError(name)
        if name == "nvmlDeviceGetFieldValues":
            field = types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=0))
            return lambda handle, fields: [field]
        if name == "nvmlDeviceGetGpuFabricInfoV":
            return self._fabric
        if name == "nvmlDeviceGetMemoryInfo":
            return lambda handle, version=None: self._say(self.answers[name])
        if name == "nvmlDeviceGetSramEccErrorStatus":
            return lambda handle, reference: None  # leaves the structure as it is: nothing is over
        if name in self.answers:
            return lambda *_: self._say(self.answers[name])
        value = getattr(pynvml, name)  # constants and structures are pynvml's own
        assert not name.startswith("nvmlDevice"), f"{name} is asked and has no answer"
        return value

    @staticmethod
    def _say(answer: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    @staticmethod
    def _fabric(_handle: object, reference: object) -> None:
        info = reference._obj  # type: ignore[attr-defined]
        info.state, info.status, info.healthMask = 3, 0, 0b10101010


def ask(monkeypatch: pytest.MonkeyPatch, library: Library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    topology = ended(recorded("topo/topo-m.h100x8-no-nic.txt"))
    return parse_all_gpus({"nvml": ended(collect_nvml.ask_nvml()), "topology": topology})


def test_every_value_comes_home_and_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ask(monkeypatch, Library())
    first = facts.gpus[0]
    assert (first.name, first.power_w, first.driver) == (
        "NVIDIA H100 80GB HBM3",
        100.89,
        "565.57.01",
    )
    assert isinstance(first.health, GpuHealth)
    unknown = [
        name for name in GpuHealth.__slots__
        if isinstance(getattr(first.health, name), Unknown) and name not in ("pages_pending", "reset_required")
    ]  # fmt: skip
    assert unknown == []
    assert (first.health.cuda, first.health.margin_c, first.health.fabric_state) == (
        "12.7",
        59,
        "Completed",
    )
    assert not isinstance(facts.nvlinks, Unknown)
    assert [(one.active, one.inactive) for one in facts.nvlinks] == [(18, ()), (18, ())]
    report = run_checks(
        Fleet((node("n1", gpus=facts),)), only=["gpu"], without=["gpu.count_majority"]
    )
    assert not [
        one
        for one in report.findings
        if one.verdict.value in ("WARN", "FAIL", "UNKNOWN") and one.id not in ("gpu.xid",)
    ]


def test_what_a_card_or_an_older_library_does_not_have_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    library = Library(
        1, missing=("nvmlDeviceGetMarginTemperature", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "c_nvmlGpuFabricInfoV_t", "c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetRepairStatus"),
        nvmlDeviceGetRemappedRows=refused, nvmlDeviceGetTemperatureThreshold=refused, nvmlDeviceGetEccMode=refused,
    )  # fmt: skip
    facts = ask(monkeypatch, library)
    health = facts.gpus[0].health
    assert isinstance(health, GpuHealth)
    for value in (
        health.remap_pending,
        health.margin_c,
        health.ecc,
        health.recovery_action,
        health.fabric_state,
    ):
        assert isinstance(value, Unknown)
    report = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.ecc_mode", "gpu.remap"])
    assert {one.verdict.value for one in report.findings} == {"SKIP"}


def test_a_driver_that_sees_no_card_is_held_against_what_pci_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Library(0))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    said = ended(collect_nvml.ask_nvml())
    for count, verdict in ((2, "FAIL"), (0, "SKIP")):
        facts = parse_all_gpus({"nvml": said, "pci": pci_devices(count)})
        assert (facts.state, facts.count) == ("none", 0)
        (found,) = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.driver"]).findings
        assert found.verdict.value == verdict
    assert "2 NVIDIA devices on PCI" in run_checks(
        Fleet((node("n1", gpus=parse_all_gpus({"nvml": said, "pci": pci_devices(2)})),)), only=["gpu.driver"]
    ).findings[0].evidence  # fmt: skip


def test_links_and_recovery_that_cannot_be_read_are_not_taken_for_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    field = types.SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_GPU_IS_LOST)
    library = Library(2, nvmlDeviceGetNvLinkState=lost)
    library.__dict__["nvmlDeviceGetFieldValues"] = lambda *_: [field]
    broken, whole = ask(monkeypatch, library), ask(monkeypatch, Library(2))
    fleet = Fleet((node("n1", gpus=whole), node("n2", gpus=broken)))
    report = run_checks(fleet, only=["gpu.nvlink", "gpu.recovery"])
    seen = {(one.id, one.nodes[0]): one.verdict.value for one in report.findings}
    assert seen["gpu.nvlink", "n1"] == seen["gpu.recovery", "n1"] == "PASS"
    assert seen["gpu.nvlink", "n2"] == seen["gpu.recovery", "n2"] == "UNKNOWN"


def test_lost_card_is_told_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(2)
    answers = iter(["handle", pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)])
    library.__dict__["nvmlDeviceGetHandleByIndex"] = lambda _: library._say(next(answers))
    facts = ask(monkeypatch, library)
    assert (facts.state, len(facts.gpus)) == ("partial", 1)
    assert "GPU 1" in facts.message


@pytest.mark.parametrize(
    ("mask", "summary", "bad"),
    [
        (0b0101_10_10_10_10, 2, ("Summary: Unhealthy", "Incorrect Configuration: Insufficient NVLinks")),
        (0b0001_10_01_10_01, 2, ("Summary: Unhealthy", "Bandwidth: Degraded", "Route Unhealthy: True")),
        (0b0001_01_10_01_10, 3, ("Summary: Limited Capacity", "Route Recovery in progress: True", "Access Timeout Recovery: True")),
        (0b10_10_0001_10_10_10_10, 0, ("Partition Assigned: False", "GFM State: Disconnected")),
        (0b1111_10_10_10_10, 0, ("Incorrect Configuration: 15",)),
        (0b0001_10_10_10_10, 1, ()),
    ],
)  # fmt: skip
def test_mask_of_a_fabric_has_the_words_of_nvidia_smi(
    mask: int, summary: int, bad: tuple[str, ...]
) -> None:
    assert fabric_health(mask, summary) == bad


def test_fabric_that_is_not_healthy_fails_also_on_a_driver_of_the_second_structure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Rack(Library):
        @staticmethod
        def _fabric(_handle: object, reference: object) -> None:
            info = reference._obj  # type: ignore[attr-defined]
            if info.version == pynvml.nvmlGpuFabricInfo_v3:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
            info.state, info.status, info.healthMask = 3, 0, 0b0001_10_01_10_10

    facts = ask(monkeypatch, Rack(1, nvmlDeviceGetName="NVIDIA GB200"))
    report = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.fabric"])
    (found,) = report.findings
    assert found.verdict.value == "FAIL"
    assert "Route Unhealthy: True" in found.evidence


def of_text(name: str):
    text = recorded(f"nvidia-smi/{name}")
    return parse_all_gpus({"nvml": ended(text), "topology": lacking()})


def test_card_that_requires_a_reset_fails_the_driver_and_nothing_else() -> None:
    facts = of_text("requires-reset.nvml.json")
    report = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu"])
    bad = [one for one in report.findings if one.verdict.value == "FAIL"]
    assert [(one.id, one.action.value) for one in bad] == [("gpu.driver", "reset-gpu")]
    assert "GPU 1: the driver says that it requires a reset" in bad[0].evidence
    assert bad[0].fix == "sudo nvidia-smi --gpu-reset -i 1  (idle GPU), else reboot"
    unsure = [one for one in report.findings if one.verdict.value == "UNKNOWN"]
    assert [one.id for one in unsure if one.because != "gpu.driver" and one.id != "gpu.xid"] == []


def test_lost_card_fails_the_driver_and_wants_a_power_cycle() -> None:
    text = recorded("nvidia-smi/requires-reset.nvml.json").replace(
        "GPU requires reset", "GPU is lost"
    )
    facts = parse_all_gpus({"nvml": ended(text), "topology": lacking()})
    report = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu"])
    bad = [one for one in report.findings if one.verdict.value == "FAIL"]
    assert [(one.id, one.action.value) for one in bad] == [("gpu.driver", "reboot")]


def test_tray_without_a_fabric_is_not_in_the_domain_of_its_rack() -> None:
    facts = of_text("gb200-no-fabric.nvml.json")
    (found,) = run_checks(Fleet((node("n1", gpus=facts),)), only=["gpu.fabric"]).findings
    assert found.verdict.value == "FAIL"
    assert "not in the NVLink domain of its rack" in found.evidence
