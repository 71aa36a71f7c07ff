"""torch, its CUDA and the driver; and GPUs in virtual machines."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from checks.facts import Fleet, Gpu, GpuFacts, GpuHealth, KernelModule, NvLinks, TorchGpus, Unknown
from checks.finding import Finding, Verdict
from checks.parsers.nvidia_smi import parse_module
from checks.runner import run_checks
from tests.checks import healthy as h
from tests.checks.sections import NO_TOOL, ended, environment, lacking

PASS, WARN, FAIL, UNKNOWN, SKIP = Verdict
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Thu Oct 10 12:29:05 UTC 2024"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build  (dvs-builder@U16)"


def found(id: str, node: str = "n3", **fields: Any) -> Finding:
    (one,) = [one for one in run_checks(h.fleet(**{node: fields}), only=[id]).findings if node in one.nodes]  # fmt: skip
    return one


def with_driver(driver: str, cuda: str, **fields: Any) -> Finding:
    gpus = tuple(dataclasses.replace(one, driver=driver) for one in h.gpu_facts().gpus)
    software = dataclasses.replace(environment(torch="2.13.0"), torch_cuda=cuda)
    return found("software.cuda_driver", gpus=h.gpu_facts(gpus=gpus), software=software, **fields)


NO_CUDA = TorchGpus(0, "The NVIDIA driver on your system is too old (found version 12040)")


@pytest.mark.parametrize(
    ("driver", "cuda", "verdict", "words"),
    [
        ("580.65.06", "13.0", PASS, "driver 580.65.06 serves CUDA 13.0"),
        ("595.10", "12.8", PASS, "serves CUDA 12.8"),
        ("579.99", "13.0", FAIL, "CUDA 13.0 needs 580"),
        ("550.54.15", "12.8", PASS, "serves CUDA 12.8, all of it from 570 on"),
        ("525.60.13", "12.6", PASS, "all of it from 560 on"),
        ("520.61.05", "12.8", FAIL, "driver 520.61.05 is too old for torch 2.13.0: CUDA 12.8 needs 525"),
        ("580.65.06", "14.0", UNKNOWN, "which one CUDA 14.0 needs is not known here"),
        ("beta", "12.8", UNKNOWN, "cannot compare driver 'beta'"),
    ],
)  # fmt: skip
def test_driver_is_held_against_the_cuda_of_torch(
    driver: str, cuda: str, verdict: Verdict, words: str
) -> None:
    one = with_driver(driver, cuda, torch_gpus=NO_CUDA)
    assert one.verdict is verdict
    assert words in one.evidence


def test_the_fix_names_an_environment_for_this_driver() -> None:
    older = with_driver("550.54.15", "13.0", torch_gpus=NO_CUDA)
    assert older.fix == "LOCK=cuda12 make venv; or install driver 580 or newer on the node"
    oldest = with_driver("470.256.02", "13.0", torch_gpus=NO_CUDA)
    assert oldest.fix == "install driver 580 or newer on the node"


def test_kernel_module_tells_the_version_where_nvidia_smi_fails() -> None:
    failed = dataclasses.replace(
        h.gpu_facts(), state="failed", gpus=(), message="Driver/library version mismatch",
        module=KernelModule("565.57.01", 8),
    )  # fmt: skip
    software = dataclasses.replace(environment(), torch_cuda="13.0")
    lost = Unknown("no end in 20 s")
    one = found("software.cuda_driver", gpus=failed, software=software, torch_gpus=lost)
    assert (one.verdict, one.value) == (FAIL, "565.57.01")
    nothing = dataclasses.replace(failed, module=Unknown("Permission denied"))
    assert found("software.cuda_driver", gpus=nothing, software=software).verdict is UNKNOWN


@pytest.mark.parametrize("first", [CLOSED, OPEN])
def test_kernel_module_is_read(first: str) -> None:
    found = parse_module(ended(f"{first}\n0000:18:00.0\n0000:2a:00.0\n"))
    assert found == KernelModule("565.57.01" if first is CLOSED else "580.65.06", 2)


@pytest.mark.parametrize("text", ["", "NVRM version:", "[N/A]\n", f"{CLOSED}\nerror: no folder\n", CLOSED[:40]])  # fmt: skip
def test_kernel_module_that_cannot_be_read_is_unknown(text: str) -> None:
    assert isinstance(parse_module(ended(text)), Unknown)


def test_no_kernel_module_is_an_absence() -> None:
    none = parse_module(lacking("missing", "No such file"))
    assert isinstance(none, Unknown)
    assert none.is_absence


def test_nodes_whose_torch_cannot_use_cuda_fail_with_its_reason() -> None:
    reason = "CUDA initialization: Error 802: system not yet initialized"
    one = found("software.torch_gpus", torch_gpus=TorchGpus(0, reason))
    assert (one.verdict, one.evidence) == (FAIL, f"torch cannot use a GPU: {reason}")
    assert not run_checks(h.fleet(n3={"torch_gpus": TorchGpus(0, reason)})).go


def test_a_torch_that_gives_no_answer_stops_no_launch() -> None:
    report = run_checks(h.fleet(n3={"torch_gpus": Unknown("no end in 20 s, killed")}))
    assert (report.exit_code, report.go) == (3, True)


def test_a_launch_on_cpus_asks_nothing_of_cuda() -> None:
    fleet = h.fleet(h.needs(device="cpu"), n3={"torch_gpus": NO_CUDA})
    ids = ["software.cuda_driver", "software.torch_gpus"]
    assert {one.verdict for one in run_checks(fleet, only=ids).findings} == {SKIP}


def test_a_driver_without_its_tool_is_hardware_even_where_pci_is_hidden() -> None:
    gpus = dataclasses.replace(NO_TOOL, module=KernelModule("565.57.01", 8))
    assert gpus.has_hardware
    one = found("gpu.driver", gpus=gpus)
    assert (one.verdict, one.evidence) == (
        FAIL, "the driver's kernel module has 8 GPUs, but there is no nvidia-smi",
    )  # fmt: skip


def machine(mode: str, **fields: Any) -> GpuFacts:
    """Eight GPUs in a virtual machine (`mode` of NVML), without NVSwitch."""

    def change(gpu: Gpu) -> Gpu:
        assert isinstance(gpu.health, GpuHealth)
        health = dataclasses.replace(gpu.health, virtualization=mode)
        return dataclasses.replace(gpu, health=health)

    gpus = tuple(map(change, h.gpu_facts().gpus))
    return h.gpu_facts(gpus=gpus, nvswitches=0, fabric_manager=Unknown("no systemctl"), **fields)


NO_LINKS = tuple(NvLinks(number, 0, tuple(range(18))) for number in range(8))


def verdicts(gpus: GpuFacts, *others: GpuFacts) -> dict[str, Verdict]:
    nodes = [h.full(name, gpus=one) for name, one in zip(h.NAMES, (gpus, *others), strict=False)]
    report = run_checks(Fleet(tuple(nodes), h.needs()), only=["gpu.nvlink", "gpu.fabric"])
    return {one.id: one.verdict for one in report.findings if "n1" in one.nodes}


def test_virtual_machines_without_any_link_are_a_question_for_the_host() -> None:
    alone = machine("Pass-Through", nvlinks=NO_LINKS)
    assert verdicts(alone)["gpu.nvlink"] is WARN
    assert verdicts(alone, alone)["gpu.nvlink"] is WARN
    assert verdicts(machine("None", nvlinks=NO_LINKS))["gpu.nvlink"] is FAIL
    linked = machine("Pass-Through")
    assert verdicts(alone, linked)["gpu.nvlink"] is FAIL  # others of its model have links
    half = (*NO_LINKS[:1], *h.gpu_facts().nvlinks[1:])  # type: ignore[index]
    assert verdicts(machine("Pass-Through", nvlinks=half))["gpu.nvlink"] is FAIL


@pytest.mark.parametrize(
    ("mode", "torch", "verdict"),
    [
        ("Pass-Through", TorchGpus(8), WARN),
        ("Pass-Through", TorchGpus(0, "Error 802: system not yet initialized"), FAIL),
        ("Pass-Through", Unknown("no end in 20 s"), UNKNOWN),
        ("None", TorchGpus(8), FAIL),
    ],
)
def test_fabric_of_a_virtual_machine_is_judged_by_what_torch_can_use(
    mode: str, torch: Any, verdict: Verdict
) -> None:
    first, *rest = machine(mode).gpus
    assert isinstance(first.health, GpuHealth)
    health = dataclasses.replace(first.health, fabric_state="In Progress")
    changed = (dataclasses.replace(first, health=health), *rest)
    gpus = dataclasses.replace(machine(mode), gpus=changed)
    assert found("gpu.fabric", gpus=gpus, torch_gpus=torch).verdict is verdict
