"""Which device a process computes on: a broken GPU is an error, never a slow run on the CPU."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer.errors import EngineError

VARIABLE = "TRAINER_DEVICE"  # cuda or cpu; `clusterctl launch` sets it
_DRIVER = Path("/proc/driver/nvidia/version")  # a kernel module is loaded, whatever it can do


def choose_device(local_rank: int = 0, wanted: str | None = None) -> torch.device:
    """`find_device`, which this thread computes on from now on.

    A Triton kernel is launched on the current GPU, wherever its tensors are; that is GPU 0 until
    the process sets another. This starts CUDA.
    """
    device = find_device(local_rank, wanted)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def find_device(local_rank: int = 0, wanted: str | None = None) -> torch.device:
    """The GPU of a local rank, or the CPU. `wanted` is cuda or cpu; default $TRAINER_DEVICE.

    Without a wish it is the GPU where torch is built for CUDA and the machine has a driver. Raises
    EngineError with torch's reason when a GPU cannot be had, or there are fewer than ranks.
    """
    wanted = wanted or os.environ.get(VARIABLE) or None
    if wanted not in (None, "cpu", "cuda"):
        raise EngineError(f"{VARIABLE} is cuda or cpu, not {wanted!r}")
    has_driver = _DRIVER.is_file() and torch.version.cuda is not None
    if wanted == "cpu" or (wanted is None and not has_driver and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not torch.cuda.is_available():
        raise EngineError(
            f"torch {torch.__version__} cannot use a GPU here: {_reason()}",
            hint="clusterctl preflight says why; TRAINER_DEVICE=cpu trains on the CPU",
        )
    if local_rank >= count:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        limited = "" if shown is None else f" (CUDA_VISIBLE_DEVICES={shown})"
        raise EngineError(
            f"local rank {local_rank} has no GPU: torch sees {count}{limited}",
            hint="start as many ranks on a node as it has GPUs (--nproc_per_node)",
        )
    return torch.device("cuda", local_rank)


def name_of(device: torch.device | str) -> str:
    """The driver's name of a GPU, or the kind of CPU."""
    if torch.device(device).type == "cpu":
        return platform.processor() or "cpu"
    return torch.cuda.get_device_name(device)


def be_deterministic() -> None:
    """Let torch choose kernels that give the same bits in every run, before CUDA starts.

    Flash attention's backward pass then adds in a fixed order, cuDNN attends no more, cuBLAS keeps
    to one workspace, and inductor does not choose by timing. An operation without such a kernel
    raises RuntimeError. https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    torch.use_deterministic_algorithms(True)
    # A pass over each new tensor otherwise.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """torch's generators stand afterwards as they do now."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _reason() -> str:
    """Why there is no CUDA, in torch's words."""
    if torch.version.cuda is None:
        return "it is built for the CPU (LOCK=cuda make venv installs the other build)"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return "CUDA starts, but shows no GPU (CUDA_VISIBLE_DEVICES?)"
