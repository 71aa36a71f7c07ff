"""Writes, seals, verifies and removes checkpoints: beside their place, synced, manifest, renamed.

`epoch{E}-global_step{G}/` holds `model/` and `ema/` (safetensors with an index), `optimizer/` (one
file per rank), `lr_scheduler.json`, `running_states.json`, `sampler.json`, `seen.npy` and, last,
`manifest.json` with size and SHA-256 of every other file. A folder without it is no checkpoint.
`latest` names the newest one.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.engine.shards import Shards
from trainer.errors import CheckpointError
from trainer.runlog import units
from trainer.runlog.atomic_file import sha256_of, sync, write_synced
from trainer.runlog.checkpoint_name import LATEST, MANIFEST, serial_of
from trainer.runlog.json_file import read_object
from trainer.runlog.retention import outdated
from trainer.weights.checkpoints import OPTIMIZER, complete, find, others
from trainer.weights.write import total_bytes, write_file, write_index

AVERAGE_PARTS = "ema-parts"  # until the whole average is written from them
SCHEDULE, RUNNING, SAMPLER = "lr_scheduler.json", "running_states.json", "sampler.json"
SEEN = "seen.npy"  # content ids of the clips of this epoch so far
_ASIDE = ".tmp-"  # begins the names of folders that are being made, or deleted
_OLD = f"{_ASIDE}old-"
_READERS = 8


class Entry(TypedDict):
    """A file in the manifest."""

    size: int  # bytes
    sha256: str


Entries = dict[str, Entry]  # by the file's path in the checkpoint


def refusal(failures: Iterable[str]) -> CheckpointError:
    """What all ranks raise when some could not write."""
    text = f"the checkpoint could not be written: {'; '.join(failures)}"
    refused = CheckpointError(text, hint="checkpoints that were complete before are untouched")
    refused.on_all_ranks = True
    return refused


def begin(part: Path, need: int) -> list[str]:
    """Make a save's folder; returns messages about older ones left. Raises CheckpointError."""
    # Of a run that was killed while it saved, or what could not be deleted at first.
    notes = discard(unfinished(part.parent))
    free = shutil.disk_usage(part.parent).free
    if free < need:
        raise CheckpointError(
            f"it needs {units.size(need)} and {part.parent} has {units.size(free)} free"
        )
    for folder in (OPTIMIZER, AVERAGE_PARTS):
        (part / folder).mkdir(parents=True)
    return notes


def unfinished(run_dir: Path) -> list[Path]:
    """Folders of saves that did not end, which the next save deletes."""
    return sorted(run_dir.glob(f"{_ASIDE}*"))


def discard(paths: Iterable[Path]) -> list[str]:
    """Rename and delete folders; returns messages about those left, which the next save retries."""
    notes = []
    for path in paths:
        try:
            shutil.rmtree(_put_aside(path))
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            notes.append(f"{path.name} cannot be deleted and still takes space: {why}")
    return notes


def _put_aside(path: Path) -> Path:
    """Rename it to what `begin` deletes, unless that was done before."""
    if path.name.startswith(_OLD):
        return path
    aside = path.with_name(f"{_OLD}{secrets.token_hex(4)}-{path.name.removeprefix(_ASIDE)}")
    return path.rename(aside)


def part_of(final: Path) -> Path:
    """The folder that a checkpoint is made in."""
    return final.with_name(f"{_ASIDE}{final.name}")


def serial_before(load: str | None) -> int:
    """Of the checkpoint that a run continues from; 0 without one, or without a number."""
    if load is None:
        return 0
    try:
        return serial_of(find(Path(load)) / MANIFEST)
    except (OSError, CheckpointError):
        return 0  # it was there when the run began


def seal(part: Path, final: Path, files: Entries, follows: int = 0) -> list[str]:
    """Write the manifest, then rename the folder; returns messages about what is not deleted. Its
    serial number is above those of the other checkpoints there, and above `follows`, that of the
    one that the run continues from: a resumed run writes what one without a stop does."""
    ordered = {name: files[name] for name in sorted(files)}
    others_there = [path for path in complete(final.parent) if path != final]
    serial = 1 + max([follows, *(serial_of(path / MANIFEST) for path in others_there)])
    about = {"schema": 1, "serial": serial, "files": ordered}
    write_synced(part / MANIFEST, json.dumps(about, indent=1))
    for folder in [*(path for path in part.rglob("*") if path.is_dir()), part]:
        sync(folder)
    pointer = final.parent / f".{LATEST}"
    write_synced(pointer, final.name + "\n")
    # It exists where the run went back to an earlier checkpoint.
    before = [_put_aside(final)] if final.exists() else []
    part.rename(final)
    pointer.replace(final.parent / LATEST)
    sync(final.parent)
    return discard(before)


def write_weights(
    folder: Path, weights: Mapping[str, Tensor], parts: Path, suffix: str = ""
) -> list[Path]:
    """Safetensors with an index; what is on the meta device is read from `parts`, one at a time."""
    shards, file = Shards(parts), folder / "model.safetensors"

    def read(name: str) -> Tensor:
        like = weights[name]
        if not like.is_meta:
            return like
        return shards.read(name + suffix, like.numel(), 0, 1).view(like.shape).to(like.dtype)

    folder.mkdir()
    write_file(file, weights, read=read)
    index = write_index(folder, dict.fromkeys(weights, file.name), total_bytes(weights))
    return [file, index]


def write_documents(part: Path, documents: Mapping[str, Any]) -> list[Path]:
    """Plain data as JSON, arrays as .npy, by file name."""
    written = []
    for name, document in documents.items():
        path = part / name
        if isinstance(document, np.ndarray):
            np.save(path, document)
        else:
            path.write_text(json.dumps(document, indent=1) + "\n")
        written.append(path)
    return written


def entries(part: Path, files: Iterable[Path]) -> Entries:
    """Size and SHA-256 of files under `part`, which are on the disk after it."""
    found: Entries = {}
    for path in files:
        sync(path)
        name = str(path.relative_to(part))
        found[name] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    return found


def forget_old(newest: Path, keep: int, every: int = 0) -> list[str]:
    """Keep `newest`, `keep - 1` others and each `every`-th step; returns messages as `discard`."""
    if keep < 1:
        return []
    made = [*(path for path in complete(newest.parent) if path != newest), newest]
    steps = [int(path.name.rpartition("step")[2]) for path in made]
    return discard([made[index] for index in outdated(steps, keep, every)])


def verify(
    path: Path, folders: Container[str] | None = None, lives: Callable[[], None] = lambda: None
) -> None:
    """Raises `CheckpointError` naming the first file that is missing, cut or changed, of all or of
    those in some `folders` of the checkpoint. Calls `lives` as long as reading makes progress."""
    if problem := _problem(path, folders, lives):
        raise CheckpointError(problem, hint=others(path))


def _problem(path: Path, folders: Container[str] | None, lives: Callable[[], None]) -> str:
    try:
        listed = read_object(path / MANIFEST)["files"]
        wanted = {
            name: (int(e["size"]), str(e["sha256"]))
            for name, e in listed.items()
            if folders is None or name.partition("/")[0] in folders
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{path / MANIFEST} cannot be read"
    for name, (size, _) in wanted.items():
        file = path / name
        if not file.is_file():
            return f"{file} is missing"
        if file.stat().st_size != size:
            return f"{file} has {file.stat().st_size:,} bytes, not {size:,}"
    digests = _digests([path / name for name in wanted], lives)
    for (name, (_, digest)), found in zip(wanted.items(), digests, strict=True):
        if found != digest:
            return f"{path / name} is damaged: its SHA-256 differs"
    return ""


def _digests(files: Sequence[Path], lives: Callable[[], None]) -> list[str]:
    """SHA-256 of files, several at once: one reader gets a part of a parallel file system's speed,
    and all ranks wait for this one. Calls `lives` while any of them is read on."""
    read, seen, ended = [0], 0, threading.Event()

    def count() -> None:
        if ended.is_set():
            raise CancelledError
        read[0] += 1

    with ThreadPoolExecutor(_READERS) as pool:
        try:
            waiting = [pool.submit(sha256_of, file, lives=count) for file in files]
            while wait(waiting, timeout=1.0).not_done:
                if read[0] != seen:
                    seen = read[0]
                    lives()
            return [one.result() for one in waiting]
        finally:  # Ctrl-C, or another rank has gone: not after hundreds of gigabytes more
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def read_document(path: Path) -> dict[str, Any]:
    """A small JSON file of a checkpoint; raises `CheckpointError`."""
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def read_array(path: Path) -> NDArray[np.uint64]:
    """An array that `save` wrote; raises `CheckpointError`."""
    try:
        with path.open("rb") as file:
            # not np.load: that also takes zip archives and pickles for what they are
            found: NDArray[np.uint64] = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if found.dtype != np.uint64 or found.ndim != 1:
        raise CheckpointError(f"{path} holds {found.ndim}-d {found.dtype}, not a row of uint64")
    return found
