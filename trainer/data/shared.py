"""A manifest read once on each machine: one rank reads, the others map what it wrote into memory.

Eight ranks that read 1.3 million rows with captions each hold the table and each spend the time. So local
rank 0 puts numbers and texts into files of a folder in memory (/dev/shm; where that is too small, in the
temporary folder), all ranks of the machine map them, and the names are removed at once: the kernel gives
the memory back when the last rank ends, however it ends. Where any of it fails a rank reads for itself,
and the run says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest import NUMBERS, Manifest, read_manifest
from trainer.data.texts import MappedTexts
from trainer.errors import TrainerError

MEMORY = Path("/dev/shm")
_PREFIX = "clusterctl-manifest"
_OLD_S = 3600.0  # a folder that is older was left by a run that was killed while it read
_BLOCK = 1 << 14  # rows
_ARRAYS = (*NUMBERS, "fps")


class Ranks(Protocol):
    """What of an engine is needed."""

    rank: int
    local_rank: int
    world: int

    def gather_objects(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a machine's reading rank tells the others of it."""

    folder: Path | None
    source: Path
    root: Path
    wrong: tuple[Any, ...]
    reason: str = ""  # why there is no folder


def read_once(
    ranks: Ranks, path: Path, root: Path | None = None, memory_efficient: bool = False
) -> tuple[Manifest, list[str]]:
    """`read_manifest` for all ranks (collective), and what to say where it could not be shared.

    Raises what it raises, on all ranks. Shards are read by every rank: their texts stay on disk and
    their numbers are 16 bytes a row. Columns that training does not use are not shared.
    """
    if memory_efficient or path.is_dir() or ranks.world == 1:
        return _alone(ranks, path, root, memory_efficient)
    leader = ranks.rank - ranks.local_rank
    hosts = ranks.gather_objects(_machine())
    # A launcher that numbers local ranks in another way: each rank reads, nobody maps another's.
    reads = leader == ranks.rank or not leader >= 0 or hosts[leader] != hosts[ranks.rank]
    shares = sum(host == hosts[ranks.rank] for host in hosts) > 1
    own: Manifest | None = None
    said: _Offer | TrainerError | None = None
    if reads:
        try:
            own = read_manifest(path, root=root)
            said = _offer(own, ranks.rank) if shares else None
        except TrainerError as error:
            said = error
    offers = ranks.gather_objects(said)
    refused = [offer for offer in offers if isinstance(offer, TrainerError)]
    if refused:
        refused[0].on_all_ranks = True
        raise refused[0]
    offer = offers[ranks.rank if reads else leader]
    reason, mapped = "", None
    if offer is not None and offer.folder is not None:
        try:
            mapped = _map(offer)
        except (OSError, ValueError) as error:
            reason = f"{offer.folder}: {error}"
    elif offer is not None or not reads:
        reason = offer.reason if offer is not None else f"rank {leader} is no local rank 0"
    failures = ranks.gather_objects(reason)  # all have mapped: the names may go
    if reads and offer is not None and offer.folder is not None:
        shutil.rmtree(offer.folder, ignore_errors=True)
    if mapped is None:
        mapped = own if own is not None else read_manifest(path, root=root)
    notes = [
        f"rank {rank} on {hosts[rank].partition(' ')[0]} has the manifest to itself: {text}"
        for rank, text in enumerate(failures)
        if text
    ]
    return mapped, notes


def _alone(
    ranks: Ranks, path: Path, root: Path | None, memory_efficient: bool
) -> tuple[Manifest, list[str]]:
    failure, found = None, None
    try:
        found = read_manifest(path, root=root, memory_efficient=memory_efficient)
    except TrainerError as error:
        failure = error
    if ranks.world > 1:
        failures = [error for error in ranks.gather_objects(failure) if error is not None]
        failure = failures[0] if failures else None
    if failure is not None or found is None:
        assert failure is not None
        failure.on_all_ranks = ranks.world > 1
        raise failure
    return found, []


def _machine() -> str:
    """Name and boot of this machine: ranks of which this is equal share memory."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers of one machine have a /dev/shm each.
    with contextlib.suppress(OSError):
        boot += f" {MEMORY.stat().st_dev}"
    return f"{socket.gethostname()} {boot}"


def _offer(manifest: Manifest, rank: int) -> _Offer:
    folder, reason = None, ""
    try:
        folder = _folder(_bytes(manifest), rank)
        _write(manifest, folder)
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        folder, reason = None, error.strerror or str(error)
    return _Offer(folder, manifest.source, manifest.root, manifest.wrong, reason)


def _bytes(manifest: Manifest) -> int:
    """More than the files will need, by the lengths of a thousand rows."""
    count = len(manifest)
    rows = range(0, count, max(1, count // 1000))
    texts = [len(column[row].encode("utf-8", "surrogateescape")) for row in rows for column in (manifest.paths, manifest.texts)]  # fmt: skip
    return int(count * (32 + 2 * sum(texts) / len(rows))) + (1 << 20)


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


def _write(manifest: Manifest, folder: Path) -> None:
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", getattr(manifest, name))
    for name in ("paths", "texts"):
        ends = np.zeros(len(manifest) + 1, np.int64)
        with (folder / f"{name}.bin").open("wb") as file:
            for start, encoded in _encoded(getattr(manifest, name)):
                lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
                ends[start + 1 : start + 1 + len(encoded)] = ends[start] + np.cumsum(lengths)
                file.write(b"".join(encoded))
            file.write(b"\0")  # a file of no bytes cannot be mapped
        np.save(folder / f"{name}.npy", ends)


def _encoded(texts: Sequence[str]) -> Iterator[tuple[int, list[bytes]]]:
    for start in range(0, len(texts), _BLOCK):
        block = texts[start : start + _BLOCK]
        yield start, [text.encode("utf-8", "surrogateescape") for text in block]


def _map(offer: _Offer) -> Manifest:
    assert offer.folder is not None

    def array(name: str) -> NDArray[Any]:
        # as a plain array: a memmap makes an object of its class of every slice
        return np.asarray(np.load(offer.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))  # type: ignore[operator]

    def texts(name: str) -> MappedTexts:
        data = np.asarray(np.memmap(offer.folder / f"{name}.bin", np.uint8, "r"))  # type: ignore[operator]
        return MappedTexts(data, array(name))

    frames, height, width, fps = (array(name) for name in _ARRAYS)
    return Manifest(
        offer.source, offer.root, texts("paths"), texts("texts"), frames, height, width, fps,
        wrong=offer.wrong,
    )  # fmt: skip
