"""Something made once on each machine: one rank makes it, the others map what it wrote into memory.

If eight ranks read 1.3 million rows with captions, each holds the table and each spends the time.
So local rank 0 writes what it made to files of a folder in memory (/dev/shm; where that is too
small, in the temporary folder), all ranks of the machine map them, and the names are removed at
once: the kernel frees the memory when the last rank ends, however it ends. Where any of it fails
a rank makes the thing for itself, and the run says so. Users: `shared_manifest`, `shared_plan`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainer.engine.agreement import agreed, attempt
from trainer.errors import TrainerError

MEMORY = Path("/dev/shm")
_PREFIX = "clusterctl-shared"
_OLD_S = 3600.0  # a folder that is older was left by a run that was killed while it wrote

T = TypeVar("T")


class Ranks(Protocol):
    """What of an engine is needed."""

    rank: int
    local_rank: int
    world: int

    def gather_objects(self, value: Any) -> list[Any]: ...


class Form(Protocol[T]):
    """How a thing is laid into the files of a folder."""

    name: str  # what people call the thing

    def size(self, made: T) -> int:
        """More bytes than the files will need."""

    def write(self, made: T, folder: Path) -> Any:
        """Make the files; returns what the others get by pickle, which should be little."""

    def map(self, facts: Any, folder: Path) -> T:
        """The thing again, from mapped files.

        Raises OSError, ValueError or TrainerError when they are not good.
        """


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a machine's making rank tells the others of it."""

    folder: Path | None
    facts: Any = None
    reason: str = ""  # why there is no folder


def once(ranks: Ranks, make: Callable[[], T], form: Form[T]) -> tuple[T, list[str]]:
    """What `make` returns, for all ranks (collective), and what to say where sharing failed.

    `make` must give the same on every rank. Its failure on any of them is raised on all.
    """
    if ranks.world == 1:
        return make(), []
    leader = ranks.rank - ranks.local_rank
    hosts = ranks.gather_objects(_machine())
    # A launcher that numbers local ranks in another way: each rank makes it, nobody maps another's.
    makes = leader == ranks.rank or not leader >= 0 or hosts[leader] != hosts[ranks.rank]
    shares = sum(host == hosts[ranks.rank] for host in hosts) > 1
    own: list[T] = []  # none or one
    said: _Offer | TrainerError | None = None
    if makes:
        made, said = attempt(make)
        if made is not None:
            own = [made]
            said = _offer(made, form, ranks.rank) if shares else None
    offers = ranks.gather_objects(said)
    _raise_any(offers)
    offer = offers[ranks.rank if makes else leader]
    reason, mapped = "", own
    if offer is not None and offer.folder is not None:
        try:
            mapped = [form.map(offer.facts, offer.folder)]
        except (OSError, ValueError, MemoryError, TrainerError) as error:
            reason = f"{offer.folder}: {error}"
    elif offer is not None or not makes:
        reason = offer.reason if offer is not None else f"rank {leader} is no local rank 0"
    reasons = ranks.gather_objects(reason)  # all have mapped: the names may go
    if makes and offer is not None and offer.folder is not None:
        shutil.rmtree(offer.folder, ignore_errors=True)
    if any(reasons):
        failure = None
        if not mapped:
            made, failure = attempt(make)
            mapped = [] if made is None else [made]
        _raise_any(ranks.gather_objects(failure))
    notes = [
        f"rank {rank} on {hosts[rank].partition(' ')[0]} has {form.name} to itself: {text}"
        for rank, text in enumerate(reasons)
        if text
    ]
    return mapped[0], notes


def save_array(folder: Path, name: str, array: NDArray[Any]) -> None:
    np.save(folder / f"{name}.npy", array)


def map_array(folder: Path, name: str) -> NDArray[Any]:
    """As a plain array: a memmap makes an object of its class of every slice."""
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))


def _raise_any(said: list[Any]) -> None:
    """Raise the first error that a rank tells of; all ranks do."""
    for rank, error in enumerate(said):
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


def _offer(made: T, form: Form[T], rank: int) -> _Offer:
    folder = None
    try:
        folder = _folder(form.size(made), rank)
        return _Offer(folder, form.write(made, folder))
    except (OSError, MemoryError) as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return _Offer(
            None, reason=str(getattr(error, "strerror", "") or error or "too little memory")
        )


def _folder(need: int, rank: int) -> Path:
    """A new folder with room for so many bytes. Raises OSError when there is none."""
    tried = []
    for base in (MEMORY, Path(tempfile.gettempdir())):
        if not os.access(base, os.W_OK):
            tried.append(f"{base} cannot be written to")
            continue
        for left in base.glob(f"{_PREFIX}-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _OLD_S:
                    shutil.rmtree(left, ignore_errors=True)
        free = shutil.disk_usage(base).free
        if 2 * need <= free:
            folder = base / f"{_PREFIX}-{os.getuid()}-{secrets.token_hex(8)}-{rank}"
            folder.mkdir(mode=0o700)
            return folder
        tried.append(f"{base} has {free / 1e6:,.0f} MB free for {need / 1e6:,.0f} MB")
    raise OSError("; ".join(tried))
