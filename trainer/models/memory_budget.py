"""A network over more rows of a batch than fit into memory at once.

How much fits is decided by bytes, not by a count: `MemoryBudget` starts from the device's size, so
that a machine divides the work the same way in every run, and halves whenever an allocation fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.engine.memory import GIB, is_out_of_memory
from trainer.errors import OutOfMemory

Network = Callable[[Tensor], Tensor]

DEVICE_SHARE = 8  # of an accelerator's memory: the model that is trained needs most of it
HOST_SHARE = 32  # of a machine's, which its ranks share
HOST_MOST = GIB  # a CPU is no faster with more at once


@dataclass
class MemoryBudget:
    """Bytes that one call of a network may take; falls when that proves too much."""

    limit_bytes: int | None = None  # None: a share of the device's memory

    def bytes(self, device: torch.device) -> int:
        if self.limit_bytes is None:
            self.limit_bytes = _share(device)
        return self.limit_bytes

    def fits(self, each_bytes: int, device: torch.device) -> int:
        """How many at once, at least one."""
        return max(1, self.bytes(device) // max(1, each_bytes))


def _share(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return min(int(line.split()[1]) * 1024 // HOST_SHARE, HOST_MOST)
    return HOST_MOST


def in_batches(network: Network, x: Tensor, each_bytes: int, budget: MemoryBudget) -> Tensor:
    """network(x) for as many rows of x at a time as fit, joined; `each_bytes` is one row's peak.

    Raises OutOfMemory when one row alone does not fit.
    """
    out: Tensor | None = None
    start = 0
    while start < len(x):
        count = min(len(x) - start, budget.fits(each_bytes, x.device))
        piece = _attempt(network, x[start : start + count])
        if piece is None:
            budget.limit_bytes = count * each_bytes // 2
            if count == 1:
                raise OutOfMemory(
                    f"{' x '.join(map(str, x.shape[1:]))} values at once are too many for the VAE "
                    f"in the memory of {x.device}",
                    hint="smaller videos, or a smaller vae.memory_gb",
                )
            continue
        if out is None:  # in place: joining at the end would hold everything twice
            out = piece if count == len(x) else piece.new_empty(len(x), *piece.shape[1:])
        if out is not piece:
            out[start : start + count] = piece
        start += count
    assert out is not None, "no rows"
    return out


def _attempt(network: Network, x: Tensor) -> Tensor | None:
    """The result, or None when there was too little memory (freed when this returns)."""
    try:
        return network(x)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if x.device.type == "cuda":
        torch.cuda.empty_cache()
    return None
