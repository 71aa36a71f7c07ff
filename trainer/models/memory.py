"""How much memory is left, which errors mean too little, and work in parts that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.errors import OutOfMemory
from trainer.runlog import units

GIB = 1 << 30
Network = Callable[[Tensor], Tensor]

DEVICE_SHARE = 8  # of an accelerator's memory: the model that is trained needs most of it
HOST_SHARE = 32  # of a machine's, which its ranks share
HOST_MOST = GIB  # a CPU is no faster with more at once
# In the texts of allocators that raise a plain RuntimeError.
_TEXTS = (
    "defaultcpuallocator",
    "can't allocate memory",
    "cannot allocate memory",
    "cuda out of memory",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "storage size calculation overflowed",  # a tensor of more bytes than can be counted
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means too little memory, of the host or of the device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(text in message for text in _TEXTS)


def available_bytes(device: torch.device) -> int:
    """What a process can still take: the device's free memory, or the host's within its cgroup."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        # What torch holds but does not use is free for its own tensors.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([_meminfo("MemAvailable"), *_cgroup_free()])


def card_bytes(device: torch.device) -> int:
    """What of an accelerator is torch's or free: all but contexts, NCCL and other processes."""
    free, _total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def _meminfo(name: str) -> int:
    return int(Path("/proc/meminfo").read_text().split(f"{name}:")[1].split()[0]) * 1024


def _cgroup_free(root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Limit less use of this process's control group and all above it (version 2)."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].split(":")[-1]
    except (OSError, IndexError):
        return
    folder = root / own.lstrip("/")
    while True:
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text()) - _reclaimable(folder)
        except (OSError, ValueError):
            limit, used = "max", 0
        if limit != "max":
            yield max(0, int(limit) - used)
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _reclaimable(folder: Path) -> int:
    """Cached files and kernel caches, freed on demand, without tmpfs and shared memory."""
    try:
        lines = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
        stat = {name: int(value) for name, value in lines}
    except (OSError, ValueError):
        return 0
    return max(0, stat.get("file", 0) - stat.get("shmem", 0)) + stat.get("slab_reclaimable", 0)


def require(needed: int, device: torch.device, what: str, hint: str) -> None:
    """Raises OutOfMemory for what cannot fit; `needed` is a lower bound."""
    free = available_bytes(device)
    if needed > free:
        need, left, name = units.size(needed), units.size(free), _name_of(device)
        raise OutOfMemory(f"{what}: at least {need} are needed, {name} has {left} left", hint=hint)


@contextmanager
def as_one_sentence(device: torch.device, what: str, hint: str) -> Iterator[None]:
    """Turns an allocator's error into OutOfMemory with what was being done and what would help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{what}: too much for {_name_of(device)}", hint=hint) from None


def _name_of(device: torch.device) -> str:
    return f"the memory of {device}" if device.type == "cuda" else "this machine's memory"


@dataclass
class MemoryBudget:
    """Bytes that one call of a network may take; falls when that proves too much."""

    limit_bytes: int | None = None  # None: a share of the device's memory

    def bytes(self, device: torch.device) -> int:
        if self.limit_bytes is None:
            if device.type == "cuda":
                share = torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE
            else:
                share = min(_meminfo("MemTotal") // HOST_SHARE, HOST_MOST)
            self.limit_bytes = share
        return self.limit_bytes


def in_batches(
    network: Network,
    x: Tensor,
    each_bytes: int,
    budget: MemoryBudget,
    name: str = "the VAE",
    hint: str = "smaller videos, or a smaller vae.memory_gb",
) -> Tensor:
    """network(x) in batches of rows that fit, `each_bytes` a row. Raises OutOfMemory, in which
    `name` is the network."""
    out: Tensor | None = None
    start = 0
    while start < len(x):
        fits = max(1, budget.bytes(x.device) // max(1, each_bytes))
        count = min(len(x) - start, fits)
        piece = _attempt(network, x[start : start + count])
        if piece is None:
            budget.limit_bytes = count * each_bytes // 2
            if count == 1:
                what = f"{' x '.join(map(str, x.shape[1:]))} values at once"
                text = f"{what} are too many for {name} in the memory of {x.device}"
                raise OutOfMemory(text, hint=hint)
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
