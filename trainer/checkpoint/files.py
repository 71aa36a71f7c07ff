"""A run's checkpoints on disk: written beside their place, synced, sealed by a manifest, renamed.

`epoch{E}-global_step{G}/` holds `model/` and `ema/` (safetensors with an index), `optimizer/` (one
file per rank), `lr_scheduler.json`, `running_states.json`, `sampler.json`, `seen.npy` and, last,
`manifest.json` with size and SHA-256 of every other file. A folder without it is no checkpoint.
`latest` names the newest one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.runlog.atomic_file import sync, write_synced
from trainer.runlog.json_file import read_object
from trainer.weights.write import write_file

MANIFEST = "manifest.json"
LATEST = "latest"
OPTIMIZER = "optimizer"
AVERAGE_PARTS = "ema-parts"  # until the whole average is written from them
SCHEDULE, RUNNING, SAMPLER = "lr_scheduler.json", "running_states.json", "sampler.json"
SEEN = "seen.npy"  # content ids of the clips of this epoch so far
_ASIDE = ".tmp-"  # begins the names of folders that are being made, or deleted
_OLD = f"{_ASIDE}old-"
_NAME = re.compile(r"epoch(\d+)-global_step(\d+)")
_CHUNK = 4 << 20


class Entry(TypedDict):
    """A file in the manifest."""

    size: int  # bytes
    sha256: str


Entries = dict[str, Entry]  # by the file's path in the checkpoint


@dataclass(frozen=True, slots=True)
class Position:
    """Where a checkpoint stands in its run."""

    epoch: int
    global_step: int

    @property
    def name(self) -> str:
        return f"epoch{self.epoch}-global_step{self.global_step}"


def refusal(failures: Iterable[str]) -> CheckpointError:
    """What all ranks raise when some could not write."""
    refused = CheckpointError(
        f"the checkpoint could not be written: {'; '.join(failures)}",
        hint="checkpoints that were complete before are untouched",
    )
    refused.on_all_ranks = True
    return refused


def begin(part: Path, need: int) -> list[str]:
    """Make the folder that a save writes to; returns messages about older ones left undeleted.

    Raises `CheckpointError` when `need` bytes do not fit.
    """
    # Of a run that was killed while it saved, or what could not be deleted at first.
    notes = [discard(left) for left in sorted(part.parent.glob(f"{_ASIDE}*"))]
    free = shutil.disk_usage(part.parent).free
    if free < need:
        raise CheckpointError(f"it needs {_shown(need)} and {part.parent} has {_shown(free)} free")
    for folder in (OPTIMIZER, AVERAGE_PARTS):
        (part / folder).mkdir(parents=True)
    return [note for note in notes if note]


def discard(path: Path) -> str:
    """Delete a folder that nothing needs; returns why it cannot be deleted, or "".

    It loses its name first: half of a checkpoint is never taken for a whole one, its place is free,
    and the next save tries again (a file that is read elsewhere over NFS, an immutable one).
    """
    try:
        shutil.rmtree(_put_aside(path))
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        return f"{path.name} cannot be deleted and still takes space: {why}"
    return ""


def _put_aside(path: Path) -> Path:
    """Rename it to what `begin` deletes, unless that was done before."""
    if path.name.startswith(_OLD):
        return path
    aside = path.with_name(f"{_OLD}{secrets.token_hex(4)}-{path.name.removeprefix(_ASIDE)}")
    path.rename(aside)
    return aside


def part_of(run_dir: Path, position: Position) -> Path:
    """The folder that a checkpoint is made in."""
    return run_dir / f"{_ASIDE}{position.name}"


def _shown(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 10**9 else f"{size / 1e6:,.2f} MB"


def seal(part: Path, final: Path, files: Entries) -> list[str]:
    """Of a folder whose files are all there: write its manifest and give it its name.

    Returns what cannot be deleted now, for people: from the renaming on, nothing is a failed save.
    """
    ordered = {name: files[name] for name in sorted(files)}
    write_synced(part / MANIFEST, json.dumps({"schema": 1, "files": ordered}, indent=1))
    for folder in [*(path for path in part.rglob("*") if path.is_dir()), part]:
        sync(folder)
    pointer = final.parent / f".{LATEST}"
    write_synced(pointer, final.name + "\n")
    before = (
        _put_aside(final) if final.exists() else None
    )  # the run went back and comes by here again
    part.rename(final)
    pointer.replace(final.parent / LATEST)
    sync(final.parent)
    note = discard(before) if before is not None else ""
    return [note] if note else []


def write_weights(
    folder: Path, weights: Mapping[str, Tensor], read: Callable[[str], Tensor] | None = None
) -> list[Path]:
    """Whole weights as safetensors with an index; see `write_file` for `read`."""
    folder.mkdir()
    file = folder / "model.safetensors"
    write_file(file, weights, read=read)
    total = sum(value.numel() * value.element_size() for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(weights, file.name)}
    beside = folder / f"{file.name}.index.json"
    beside.write_text(json.dumps(index, indent=1) + "\n")
    return [file, beside]


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
    return {str(path.relative_to(part)): _entry(path) for path in files}


def _entry(path: Path) -> Entry:
    sync(path)
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def complete(run_dir: Path) -> list[Path]:
    """A run's complete checkpoints, in the order in which they were made.

    Not in that of their numbers: a run that went back leaves higher ones behind, and those are
    older.
    """
    found = []
    for path in run_dir.iterdir():
        if match := _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(((path / MANIFEST).stat().st_mtime_ns, int(match[2]), path))
    return [path for _, _, path in sorted(found)]


def forget_old(newest: Path, keep: int, every: int = 0) -> list[str]:
    """Keep `newest`, the last `keep - 1` others, and those of every `every`-th step.

    Returns what cannot be deleted now, for people.
    """
    notes = []
    if keep >= 1:
        others = [path for path in complete(newest.parent) if path != newest]
        for path in others[: max(0, len(others) - keep + 1)]:
            if every and int(path.name.rpartition("step")[2]) % every == 0:
                continue
            notes.append(discard(path))
    return [note for note in notes if note]


def find(path: Path) -> Path:
    """The checkpoint at a path: itself, or the one that a run directory's `latest` names."""
    path = path.absolute()
    if (path / MANIFEST).is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {path}")
    if _NAME.fullmatch(path.name):
        raise CheckpointError(f"{path} is not complete: it has no {MANIFEST}", hint=_other(path))
    found = complete(path)
    if not found:
        raise CheckpointError(f"{path} holds no complete checkpoint")
    pointer = path / LATEST
    name = pointer.read_text(errors="replace").strip() if pointer.is_file() else ""
    return next((known for known in found if known.name == name), found[-1])


def verify(path: Path) -> None:
    """Raises `CheckpointError` naming the first file that is missing, cut or changed."""
    try:
        entries = read_object(path / MANIFEST)["files"]
        wanted = {name: (int(e["size"]), str(e["sha256"])) for name, e in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path / MANIFEST} cannot be read", hint=_other(path)) from None
    for name, (size, digest) in wanted.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing", hint=_other(path))
        if file.stat().st_size != size:
            raise CheckpointError(
                f"{file} has {file.stat().st_size:,} bytes, not {size:,}", hint=_other(path)
            )
        if _sha256(file) != digest:
            raise CheckpointError(f"{file} is damaged: its SHA-256 is another", hint=_other(path))


def _other(path: Path) -> str:
    others = [found for found in complete(path.parent) if found != path]
    return (
        f"the newest other checkpoint is {others[-1]}" if others else "there is no other checkpoint"
    )


def read_documents(path: Path, names: Iterable[str]) -> dict[str, Any]:
    """The small JSON files of a checkpoint by name; raises `CheckpointError`."""
    found = {}
    for name in names:
        try:
            found[name] = read_object(path / name)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path / name} cannot be read: {error}") from None
    return found


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
