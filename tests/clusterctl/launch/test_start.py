"""The device of a launch: one bad node stops it by name, and never makes a CPU run of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.facts import GpuFacts, NodeFacts, TorchGpus, Unknown, Unreached
from checks.finding import Verdict
from clusterctl.errors import CouldNotFindOut
from clusterctl.launch import start
from clusterctl.launch.inputs import LaunchLine
from clusterctl.launch.start import LaunchOptions, Prepared, plan_launch, prepare
from clusterctl.nodes import Node
from clusterctl.preflight.run import headline
from tests.checks import healthy as h
from tests.checks.sections import FAILED, HUNG, NO_TOOL

LINE = LaunchLine("STDiT3", {"files": {}, "wandb": False})
NODES = [Node(name) for name in h.NAMES]
BROKEN_CUDA = TorchGpus(0, "CUDA initialization: Error 802: system not yet initialized")


def prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *facts: NodeFacts, device: str = "auto"
) -> tuple[Prepared, LaunchOptions]:
    """What a launch over nodes with these facts decides."""
    disks = {str(tmp_path): h.disk(path=str(tmp_path))}
    monkeypatch.setattr(start, "read_node", lambda one: dataclasses.replace(one, disks=disks))
    cluster = SimpleNamespace(
        nodes=NODES, limits=SimpleNamespace(tool_s=1.0), ask=lambda verb, args: facts
    )
    options = LaunchOptions(
        "demo", device=device, python="/venv/bin/python", outputs=tmp_path, workdir=tmp_path
    )
    return prepare(cluster, options, LINE), options  # type: ignore[arg-type]


def fleet(**bad: Any) -> list[NodeFacts]:
    """Healthy nodes but n3."""
    return [h.full(name, **(bad if name == "n3" else {})) for name in h.NAMES]


@pytest.mark.parametrize(
    ("bad", "check"),
    [
        ({"gpus": NO_TOOL}, "launch.gpus"),
        ({"gpus": FAILED}, "gpu.driver"),
        ({"gpus": HUNG}, "gpu.driver"),
        ({"gpus": GpuFacts("unreadable", "nvidia-smi printed nothing")}, "gpu.driver"),
        ({"gpus": h.gpu_facts(7)}, "launch.gpus"),
        ({"torch_gpus": BROKEN_CUDA}, "software.torch_gpus"),
        ({"unreached": Unreached("tcp", 3.0, "no answer")}, "ssh.reachable"),
    ],
    ids=["no GPU", "driver failed", "driver hangs", "unreadable", "one lost", "no CUDA", "dead"],
)
def test_one_bad_node_is_refused_by_name_and_the_device_stays(
    bad: dict[str, Any], check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # of the head
    # Eight ranks a node, as slots= of a hostfile would say.
    monkeypatch.setattr(start, "choose_slots", lambda *_: dict.fromkeys(h.NAMES, 8))
    decided, options = prepared(monkeypatch, tmp_path, *fleet(**bad))
    assert decided.device == "cuda"
    assert decided.report is not None
    assert not decided.report.go
    assert check in {one.id for one in decided.report.findings if decided.report.stops(one)}
    assert decided.report.bad_nodes == ("n3",)
    assert headline(decided.report).endswith("drop n3 to go with 3 nodes (-x n3)")
    # --skip-preflight starts in spite of it: still no run on the CPU.
    values = plan_launch(NODES, decided, options, LINE, claim=False).environment.values()
    assert values["TRAINER_DEVICE"] == "cuda"
    assert "CUDA_VISIBLE_DEVICES" not in values


def test_one_node_with_a_gpu_among_others_without_refuses_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = [h.full(name, gpus=h.gpu_facts() if name == "n1" else NO_TOOL) for name in h.NAMES]
    decided, _ = prepared(monkeypatch, tmp_path, *nodes)
    assert decided.device == "cuda"
    assert decided.report is not None
    assert decided.report.bad_nodes == ("n2", "n3", "n4")


def test_without_any_gpu_it_is_a_run_on_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes = [h.full(name, gpus=NO_TOOL) for name in h.NAMES]
    decided, options = prepared(monkeypatch, tmp_path, *nodes)
    assert (decided.device, decided.unsure) == ("cpu", {})
    values = plan_launch(NODES, decided, options, LINE, claim=False).environment.values()
    assert values["TRAINER_DEVICE"] == "cpu"


@pytest.mark.parametrize(
    "bad",
    [
        {"unreached": Unreached("tcp", 3.0, "no answer")},
        {"gpus": dataclasses.replace(NO_TOOL, on_pci=Unknown("Permission denied"))},
    ],
    ids=["dead", "PCI unread"],
)
def test_a_node_of_unknown_gpus_lets_nobody_start_on_cpus(
    bad: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With --skip-preflight the report stops nothing: the plan does."""
    nodes = [h.full(name, **({"gpus": NO_TOOL} | (bad if name == "n3" else {}))) for name in h.NAMES]  # fmt: skip
    decided, options = prepared(monkeypatch, tmp_path, *nodes)
    assert (decided.device, list(decided.unsure)) == ("cpu", ["n3"])
    for claim in (True, False):  # nor a dry run show such a plan
        with pytest.raises(CouldNotFindOut, match="whether n3 has GPUs is not known") as error:
            plan_launch(NODES, decided, options, LINE, claim=claim)
        assert "-x n3" in str(error.value.hint)
    assert not list(tmp_path.iterdir())
    said, options = prepared(monkeypatch, tmp_path, *nodes, device="cpu")
    assert plan_launch(NODES, said, options, LINE, claim=True).device == "cpu"


def test_a_driver_of_which_only_the_kernel_module_is_seen_is_no_cpu_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from checks.facts import KernelModule

    hidden = dataclasses.replace(NO_TOOL, module=KernelModule("580.65.06", 8))
    decided, _ = prepared(monkeypatch, tmp_path, *[h.full(name, gpus=hidden) for name in h.NAMES])
    assert decided.device == "cuda"
    assert decided.report is not None
    found = {one.verdict for one in decided.report.findings if one.id == "gpu.driver"}
    assert found == {Verdict.FAIL}
