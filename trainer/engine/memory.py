"""How much memory is left, and which of the many errors mean that it was not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer.errors import OutOfMemory

GIB = 1 << 30
# Said by allocators that raise a plain RuntimeError.
_WORDS = (
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
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)


def available_bytes(device: torch.device) -> int:
    """What a process can still take: the device's free memory, or the host's within its cgroup."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        # What torch holds but does not use is free for its own tensors.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([_meminfo(), *_cgroup_free()])


def _meminfo() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


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
    """Bytes of a group that the kernel frees on demand: cached files, its own caches.

    Files in memory (tmpfs, shared memory) count as files there and are not given up.
    """
    try:
        lines = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
        stat = {name: int(value) for name, value in lines}
    except (OSError, ValueError):
        return 0
    return max(0, stat.get("file", 0) - stat.get("shmem", 0)) + stat.get("slab_reclaimable", 0)


def require(needed: int, device: torch.device, what: str, hint: str) -> None:
    """Refuse what cannot fit: `needed` is a lower bound, so nothing that fits is ever refused.

    Raises OutOfMemory.
    """
    free = available_bytes(device)
    if needed > free:
        raise OutOfMemory(
            f"{what}: at least {needed / GIB:,.1f} GiB are needed, {_where(device)} has "
            f"{free / GIB:,.1f} GiB left",
            hint=hint,
        )


@contextmanager
def as_one_sentence(device: torch.device, what: str, hint: str) -> Iterator[None]:
    """Turns an allocator's error into OutOfMemory with what was being done and what would help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{what}: too much for {_where(device)}", hint=hint) from None


def _where(device: torch.device) -> str:
    return f"the memory of {device}" if device.type == "cuda" else "this machine's memory"
