"""Safetensors files, whole or not at all, in the memory of one tensor (save_file: of all)."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError, PathError
from trainer.runlog import units
from trainer.runlog.atomic_file import put_in_place, remove, sync, write_synced
from trainer.weights.tensorfile import DTYPES, dtype_name

SHARD_BYTES = 5 * 10**9  # largest file of a folder, as the hub's tools write them
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_Tensors = Mapping[str, Tensor]
_Dtypes = Mapping[str, torch.dtype]  # what tensors become; others stay what they are
_Wrote = Callable[[int], None]  # called with bytes


@contextlib.contextmanager
def whole_or_nothing(target: Path, need_bytes: int, *, overwrite: bool = False) -> Iterator[Path]:
    """A place beside `target` that becomes it at the end, or is removed. Raises CheckpointError."""
    if target.exists() and not overwrite:
        raise PathError(f"{target} already exists", hint="choose another name, or --overwrite")
    part = target.with_name(f".tmp-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(part)  # of a conversion that was killed
        free = shutil.disk_usage(target.parent).free
        if free < need_bytes:
            free_text, need_text = units.size(free), units.size(need_bytes)
            raise CheckpointError(f"{target.parent} has {free_text} free, {need_text} are needed")
        yield part
        sync(part.parent)
        put_in_place(part, target)
        sync(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}",
            hint="what was there before is untouched",
        ) from None
    finally:
        with contextlib.suppress(NotADirectoryError):  # reported above
            remove(part)


def write_file(
    path: Path,
    tensors: _Tensors,
    dtypes: _Dtypes | None = None,
    wrote: _Wrote = lambda _: None,
    metadata: Mapping[str, str] | None = None,
    read: Callable[[str], Tensor] | None = None,
) -> None:
    """One .safetensors file, synced; with `read`, tensors are meta and it gives their data."""
    kinds = {name: (dtypes or {}).get(name, tensor.dtype) for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * kinds[name].itemsize
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[kinds[name]], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data start on a multiple of 8, as the format asks
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            found = read(name) if read is not None else tensor
            ready = found.detach().to("cpu", kinds[name]).contiguous()
            file.write(ready.reshape(-1).view(torch.uint8).numpy().data)
            wrote(ready.nbytes)
    sync(path)


def write_folder(
    folder: Path, tensors: _Tensors, config: Mapping[str, Any], dtypes: _Dtypes, wrote: _Wrote
) -> None:
    """config.json and model.safetensors, or shards with their index."""
    folder.mkdir()
    shards = _split(tensors, dtypes, SHARD_BYTES)
    count = len(shards)
    table: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        more = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
        name = f"model{more}.safetensors"
        write_file(folder / name, shard, dtypes, wrote)
        table |= dict.fromkeys(shard, name)
    if count > 1:
        write_index(folder, table, total_bytes(tensors, dtypes))
    write_synced(folder / "config.json", json.dumps(dict(config), indent=1) + "\n")
    sync(folder)


def write_index(folder: Path, table: Mapping[str, str], total: int) -> Path:
    """The index of a folder: the file of each tensor, and the bytes of all."""
    path = folder / "model.safetensors.index.json"
    index = {"metadata": {"total_size": total}, "weight_map": table}
    write_synced(path, json.dumps(index, indent=1) + "\n")
    return path


def dtypes_for(
    tensors: _Tensors, dtype: torch.dtype | None, keep: Collection[str] = ()
) -> dict[str, torch.dtype]:
    """`dtype` for floating-point ones but `keep`; raises CheckpointError for what no file holds."""
    result = {name: tensor.dtype for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if dtype is not None and tensor.is_floating_point() and name not in keep:
            result[name] = dtype
        if result[name] not in NAMES:
            raise CheckpointError(f"{name} is {dtype_name(tensor)}, which safetensors cannot hold")
    return result


def total_bytes(tensors: _Tensors, dtypes: _Dtypes | None = None) -> int:
    """Of the data in a file."""
    known = dtypes or {}
    return sum(t.numel() * known.get(name, t.dtype).itemsize for name, t in tensors.items())


def _split(tensors: _Tensors, dtypes: _Dtypes, limit: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = total_bytes({name: tensor}, dtypes)
        if shards[-1] and used + size > limit:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
    return shards
