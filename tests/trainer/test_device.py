"""A GPU that cannot be had is an error with torch's reason; the CPU is chosen where that is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.trainer.models.stdit_cases import batch, small_model
from trainer import device
from trainer.device import be_deterministic, choose_device, find_device
from trainer.errors import EngineError

OLD = "The NVIDIA driver on your system is too old (found version 12020)."


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One without a driver, and a torch for CUDA."""
    monkeypatch.delenv(device.VARIABLE, raising=False)
    monkeypatch.setattr(device, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[torch.device]:
    """That many; the list is of those that become the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "init", init)


def test_a_machine_without_a_driver_is_a_cpu() -> None:
    assert choose_device() == torch.device("cpu")


def test_each_local_rank_has_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    assert choose_device(1) == torch.device("cuda", 1)
    assert choose_device(1, "cpu") == torch.device("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(EngineError, match=r"rank 2 has no GPU: torch sees 2 \(CUDA_VIS.*=4,5\)"):
        choose_device(2)


def test_the_chosen_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = gpus(monkeypatch, 2)
    assert find_device(1) == torch.device("cuda", 1)
    choose_device(1, "cpu")
    assert current == []
    choose_device(1)
    assert current == [torch.device("cuda", 1)]


def test_a_driver_that_torch_cannot_use_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device._DRIVER.write_text("NVRM version: 535.54")
    broken(monkeypatch, RuntimeError(f"{OLD} Please update\nmore"))
    with pytest.raises(
        EngineError, match="cannot use a GPU here: The NVIDIA driver on your system"
    ):
        choose_device()
    monkeypatch.setenv(device.VARIABLE, "cpu")
    assert choose_device() == torch.device("cpu")


def test_what_the_launcher_chose_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.VARIABLE, "cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(EngineError, match=r"built for the CPU \(LOCK=cuda make venv"):
        choose_device()
    monkeypatch.setenv(device.VARIABLE, "tpu")
    with pytest.raises(EngineError, match="TRAINER_DEVICE is cuda or cpu, not 'tpu'"):
        choose_device()


def test_a_cpu_build_of_torch_beside_a_driver_is_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device._DRIVER.write_text("NVRM version: 580.65")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert choose_device() == torch.device("cpu")


def test_deterministic_kernels_are_asked_for_and_a_step_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.delenv("TORCHINDUCTOR_DETERMINISTIC", raising=False)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    try:
        be_deterministic()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert os.environ["TORCHINDUCTOR_DETERMINISTIC"] == "1"
        assert torch.are_deterministic_algorithms_enabled()
        model = small_model()  # an operation without such a kernel would raise
        model(**batch()).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
