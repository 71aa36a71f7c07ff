"""The census's GPUs on a node whose libnvidia-ml is compiled here: memory, SRAM, topology, torch."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from checks.facts import GpuFacts, GpuHealth, NodeFacts, TorchGpus, Unknown
from checks.parsers.census import parse_census
from clusterctl.payload import tools
from clusterctl.payload.collect import launch as collect_launch
from clusterctl.remote import payload as ship
from tests.captures import nvml_library
from tests.checks.captures import FOLDER
from tests.clusterctl.payload.local import LocalConnection, tools_only

TOPOLOGY = FOLDER / "topo" / "topo-m.h100x8-nic5.txt"
GIB = 1 << 30


def census(env: dict[str, str], **args: object) -> NodeFacts:
    wanted = {"everything": True, "growth_s": 0.02, "nvml": True, "log": "x", **args}
    return parse_census("n1", ship.probe(LocalConnection(env), "census", wanted, 60, nvml=True))


def gpus(tmp_path: Path, smi: str, *, is_old: bool = False, **args: object) -> GpuFacts:
    nvml_library.build(tmp_path, is_old=is_old)
    env = tools_only(tmp_path / "bin", **{"nvidia-smi": smi}, cat='exec /bin/cat "$@"')
    return census({**env, "LD_LIBRARY_PATH": str(tmp_path)}, **args).gpus


def asked_for_topology(tmp_path: Path) -> str:
    return f'echo "$*" >> {tmp_path}/asked; /bin/cat {TOPOLOGY}'


@pytest.mark.long
def test_reserved_memory_is_not_used_and_a_threshold_is_asked_for(tmp_path: Path) -> None:
    first, second, _ = gpus(tmp_path, "exit 1").gpus
    assert (first.memory_used_bytes, first.memory_total_bytes) == (71 * GIB, 80 * GIB)
    assert isinstance(first.health, GpuHealth)
    assert isinstance(second.health, GpuHealth)
    over = first.health.sram_threshold_exceeded, second.health.sram_threshold_exceeded
    assert over == (False, True)
    assert first.health.virtualization == "Pass-Through"


@pytest.mark.long
def test_an_older_driver_is_asked_in_its_own_way(tmp_path: Path) -> None:
    first, *_ = gpus(tmp_path, "exit 1", is_old=True).gpus
    assert first.memory_used_bytes == 71 * GIB + (530 << 20)
    assert isinstance(first.health, GpuHealth)
    lack = first.health.sram_threshold_exceeded
    assert isinstance(lack, Unknown)
    assert lack.is_absence


@pytest.mark.long
def test_version_of_the_gsp_firmware_comes_as_bytes_and_is_text(tmp_path: Path) -> None:
    """nvidia-ml-py leaves it undecoded; as no JSON, it cost the whole answer of NVML."""
    nvml_library.build(tmp_path, healthy=1)
    env = tools_only(tmp_path / "bin", **{"nvidia-smi": "exit 1"}, cat='exec /bin/cat "$@"')
    (only,) = census({**env, "LD_LIBRARY_PATH": str(tmp_path)}).gpus.gpus
    assert isinstance(only.health, GpuHealth)
    assert only.health.gsp == "580.65.06"


@pytest.mark.long
def test_topology_is_asked_for_beside_nvml_and_nothing_else_is(tmp_path: Path) -> None:
    found = gpus(tmp_path, asked_for_topology(tmp_path))
    assert not isinstance(found.pairs, Unknown)
    assert (found.pairs["0-7"], found.pairs["2-NIC1"]) == ("NV18", "PIX")
    assert (tmp_path / "asked").read_text() == "topo -m\n"


@pytest.mark.long
def test_without_the_rest_no_topology_is_asked_for(tmp_path: Path) -> None:
    found = gpus(tmp_path, asked_for_topology(tmp_path), everything=False)
    assert len(found.gpus) == 3
    assert not (tmp_path / "asked").exists()


@pytest.mark.long
def test_a_topology_that_hangs_costs_its_deadline_alone(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = gpus(tmp_path, "exec /bin/sleep 600", tool_timeout_s=1.0)
    assert time.monotonic() - begun < 20
    assert len(found.gpus) == 3
    assert isinstance(found.pairs, Unknown)
    assert "no end in 1 s" in found.pairs.reason


def ask_torch(tmp_path: Path, torch: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """What the census says with this text as the package torch."""
    import json
    import sys

    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tools, "SECTIONS", {})
    monkeypatch.setattr(collect_launch, "SECTIONS", tools.SECTIONS)
    collect_launch.ask_torch(sys.executable, 10.0, signs=("/proc/version",))
    section = tools.SECTIONS["torch"]
    node = {"hostname": "n1", "boot_id": "b", "user": "me", "python": "3.8", "time_s": 2e9, "boottime_s": 1.0}  # fmt: skip
    assert section["rc"] == 0, section
    json.loads(section["out"])
    return parse_census("n1", {"sections": {"torch": section}, "node": node}).torch_gpus


@pytest.mark.parametrize(
    ("torch", "found"),
    [
        ("class cuda:\n is_available = lambda: True\n device_count = lambda: 8", TorchGpus(8)),
        ("import warnings\nclass cuda:\n def is_available():\n  warnings.warn('CUDA initialization: Error 802: system not yet initialized')\n  return False",
         TorchGpus(0, "CUDA initialization: Error 802: system not yet initialized")),
        ("class cuda:\n is_available = lambda: False\n def init(): raise RuntimeError('No CUDA GPUs are available')",
         TorchGpus(0, "RuntimeError: No CUDA GPUs are available")),
        ("raise ImportError('libcudart.so.13: cannot open shared object file')",
         TorchGpus(0, "ImportError: libcudart.so.13: cannot open shared object file")),
    ],
)  # fmt: skip
def test_torch_is_asked_for_its_own_reason(
    torch: str, found: TorchGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask_torch(tmp_path, torch, monkeypatch) == found


def test_torch_is_not_imported_where_no_driver_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_launch, "section", lambda *_: pytest.fail("it was asked"))
    collect_launch.ask_torch("/usr/bin/python3", 1.0, signs=(str(tmp_path / "none"),))
