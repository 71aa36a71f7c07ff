"""Something made once on each machine: one rank makes it, the others map its arrays into memory.

Local rank 0 pickles what it made with the buffers of its arrays apart, and writes these to a file
in memory (/dev/shm; where that is too small, in the temporary folder). All ranks of the machine map
the file, and its name is removed at once: the kernel frees the memory when the last rank ends,
however it ends. Where any of it fails a rank makes the thing for itself, and the run reports it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainer.data.manifest.manifest import MAX_WRONG_ROWS, Manifest
from trainer.data.manifest.read import read_manifest
from trainer.engine.agreement import agreed, attempt
from trainer.errors import TrainerError
from trainer.runlog import units

MEMORY = Path("/dev/shm")
_PREFIX = "clusterctl-shared"
_OLD_S = 3600.0  # an older file was left by a run that was killed while it wrote
_ALIGN = 64  # bytes

T = TypeVar("T")


class Ranks(Protocol):
    """The part of an engine that is used here."""

    rank: int
    local_rank: int
    world: int

    def gather_objects(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True)
class _Offer:
    """What the rank that made the thing sends to the others of its machine."""

    path: Path
    pickled: bytes
    sizes: tuple[int, ...]  # bytes of the buffers in the file


def read_once(
    ranks: Ranks,
    path: Path,
    root: Path | None = None,
    memory_efficient: bool = False,
    max_wrong_rows: int = MAX_WRONG_ROWS,
) -> tuple[Manifest, list[str]]:
    """`read_manifest` for all ranks (collective), and notes on where it could not be shared.

    Raises what it raises, on all ranks. Texts of shards stay on disk: every rank opens the files
    (1.3 million rows: 0.02 s).
    """
    read = partial(read_manifest, path, root, max_wrong_rows, memory_efficient)
    return once(ranks, read, "the manifest")


def once(ranks: Ranks, make: Callable[[], T], name: str) -> tuple[T, list[str]]:
    """What `make` returns, for all ranks (collective), and notes on where sharing failed.

    `make` must return the same on every rank. Its failure on any of them is raised on all.
    """
    if ranks.world == 1:
        return make(), []
    leader = ranks.rank - ranks.local_rank
    hosts = ranks.gather_objects(_machine())
    # A launcher that numbers local ranks in another way: each rank makes it, nobody maps another's.
    makes = leader == ranks.rank or not leader >= 0 or hosts[leader] != hosts[ranks.rank]
    made, error = attempt(make) if makes else (None, None)
    offer: _Offer | str | None = None  # text: why there is none
    if made is not None and hosts.count(hosts[ranks.rank]) > 1:
        offer = _offer(made)
    offers = ranks.gather_objects(error or offer)
    _raise_any(offers)
    offer = offers[ranks.rank if makes else leader]
    reason = ""
    if isinstance(offer, _Offer):
        try:
            made = _map(offer)
        except (OSError, ValueError, MemoryError, TrainerError) as failure:
            reason = f"{offer.path}: {failure}"
    elif offer is not None:
        reason = offer
    elif not makes:
        reason = f"rank {leader} is no local rank 0"
    reasons = ranks.gather_objects(reason)  # all have mapped: the name may go
    if makes and isinstance(offer, _Offer):
        offer.path.unlink(missing_ok=True)
    if any(reasons):
        made, error = attempt(make) if made is None else (made, None)
        _raise_any(ranks.gather_objects(error))
    assert made is not None
    notes = [
        f"rank {rank} on {hosts[rank].partition(' ')[0]} has its own copy of {name}: {text}"
        for rank, text in enumerate(reasons)
        if text
    ]
    return made, notes


def _offer(made: Any) -> _Offer | str:
    """Buffers in a file and the rest beside it, or why not."""
    buffers: list[pickle.PickleBuffer] = []
    path = None
    try:
        pickled = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        path = _new_file(sum(part.nbytes + _ALIGN for part in parts))
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                file.write(bytes(-part.nbytes % _ALIGN))
            file.write(b"\0")  # a file of no bytes cannot be mapped
        return _Offer(path, pickled, tuple(part.nbytes for part in parts))
    except (OSError, MemoryError) as error:
        if path is not None:
            path.unlink(missing_ok=True)
        return getattr(error, "strerror", "") or str(error) or "too little memory"


def _map(offer: _Offer) -> Any:
    """The thing again. Raises OSError, ValueError or TrainerError when that fails."""
    with offer.path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    buffers, at = [], 0
    for size in offer.sizes:
        buffers.append(data[at : at + size])
        at += size + -size % _ALIGN
    return pickle.loads(offer.pickled, buffers=buffers)  # of a rank of this run


def _raise_any(results: list[Any]) -> None:
    """Raise the first error of any rank, on all ranks."""
    for rank, error in enumerate(results):
        if isinstance(error, TrainerError):
            # rank 0's is about what all have alike, as a rule
            raise agreed(error, f"rank {rank}: {error}" if rank else str(error))


def _machine() -> str:
    """Name and boot of this machine: ranks of which this is equal share memory."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers of one machine have a /dev/shm each.
    with contextlib.suppress(OSError):
        boot += f" {MEMORY.stat().st_dev}"
    return f"{socket.gethostname()} {boot}"


def _new_file(need: int) -> Path:
    """A new file, where there is space for so many bytes. Raises OSError when there is none."""
    tried = []
    for base in (MEMORY, Path(tempfile.gettempdir())):
        if not os.access(base, os.W_OK):
            tried.append(f"{base} cannot be written to")
            continue
        for left in base.glob(f"{_PREFIX}-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _OLD_S:
                    left.unlink()
        free = shutil.disk_usage(base).free
        if 2 * need <= free:
            descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}-{os.getuid()}-", dir=base)
            os.close(descriptor)
            return Path(path)
        tried.append(f"{base} has {units.size(free)} free for {units.size(need)}")
    raise OSError("; ".join(tried))
