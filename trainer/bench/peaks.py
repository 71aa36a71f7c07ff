"""Bytes that a measurement holds, and its peak: of the allocator on a GPU, else of the process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


def held_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return status_bytes("VmRSS")


def peak_bytes(device: torch.device) -> int:
    """Since `reset_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return status_bytes("VmHWM")


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Not every container allows it; the peak then has the building of the model in it.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now


def status_bytes(name: str) -> int:
    """A line of this process's status (VmRSS), 0 where there is none."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
