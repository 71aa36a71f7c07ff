"""Safetensors files written one tensor after another, made aside and renamed: whole or not at all.

The library's save_file wants every tensor in memory at once and tells no progress; the format is a
length, a JSON header and the bytes, so this writes it in the memory of one tensor.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.runlog.atomic_file import sync, write_synced

Progress = Callable[[int, int], None]  # bytes written, bytes in all
SHARD_BYTES = 5 * 10**9  # largest file of a folder, as the hub's tools write them
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@contextmanager
def whole_or_nothing(target: Path, need_bytes: int, *, overwrite: bool = False) -> Iterator[Path]:
    """A place beside `target` to write to; renamed to it at the end, removed on any failure.

    Raises CheckpointError when the target already exists, the disk has too little space, or a write
    fails; what was there before stays.
    """
    if target.exists() and not overwrite:
        raise CheckpointError(
            f"{target} already exists", hint="choose another name, or --overwrite"
        )
    part, aside = (target.with_name(f".{word}-{target.name}") for word in ("tmp", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)  # of a conversion that was killed
        free = shutil.disk_usage(target.parent).free
        if free < need_bytes:
            raise CheckpointError(
                f"{target.parent} has {free / 1e9:.1f} GB free, {need_bytes / 1e9:.1f} GB are "
                "needed"
            )
        yield part
        sync(part.parent)
        _remove(aside)
        if target.exists():
            target.rename(aside)
        part.rename(target)
        _remove(aside)
        sync(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}",
            hint="what was there before is untouched",
        ) from None
    finally:
        with contextlib.suppress(NotADirectoryError):  # said above
            _remove(part)
        if aside.exists() and not target.exists():
            aside.rename(target)


def write_file(
    path: Path,
    tensors: Mapping[str, Tensor],
    dtypes: Mapping[str, torch.dtype] | None = None,
    wrote: Callable[[int], None] = lambda count: None,
    metadata: Mapping[str, str] | None = None,
    read: Callable[[str], Tensor] | None = None,
) -> None:
    """One .safetensors file, synced to disk; tensors named in `dtypes` become what it says.

    With `read` the tensors tell only shape and dtype (on the meta device), and it gives their data.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for name, tensor in tensors.items():
        kind = (dtypes or {}).get(name, tensor.dtype)
        size = tensor.numel() * kind.itemsize
        header[name] = {
            "dtype": _NAMES[kind],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data start on a multiple of 8, as the format asks
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            kind = (dtypes or {}).get(name, tensor.dtype)
            found = read(name) if read is not None else tensor
            ready = found.detach().to("cpu", kind).contiguous()
            file.write(ready.reshape(-1).view(torch.uint8).numpy().data)
            wrote(tensor.numel() * kind.itemsize)
    sync(path)


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype] | None = None,
    wrote: Callable[[int], None] = lambda count: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """config.json and model.safetensors, or shards of at most `shard_bytes` with their index."""
    folder.mkdir()
    shards = _split(tensors, dtypes or {}, shard_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        count = len(shards)
        names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    table: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard, dtypes, wrote)
        table |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = total_bytes(tensors, dtypes)
        index = {"metadata": {"total_size": total}, "weight_map": table}
        write_synced(folder / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n")
    write_synced(folder / "config.json", json.dumps(dict(config), indent=1) + "\n")
    sync(folder)


def dtypes_for(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None, keep: Collection[str] = ()
) -> dict[str, torch.dtype]:
    """What each tensor becomes: floating-point ones `dtype`, the others and `keep` what they are.

    Raises CheckpointError for what no file can hold.
    """
    result = {}
    for name, tensor in tensors.items():
        changes = dtype is not None and tensor.is_floating_point() and name not in keep
        result[name] = dtype if changes and dtype is not None else tensor.dtype
        if result[name] not in _NAMES:
            kind = str(result[name]).removeprefix("torch.")
            raise CheckpointError(f"{name} is {kind}, which safetensors cannot hold")
    return result


def total_bytes(
    tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype] | None = None
) -> int:
    """Of the data in a file."""
    known = dtypes or {}
    return sum(t.numel() * known.get(name, t.dtype).itemsize for name, t in tensors.items())


def _split(
    tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], limit: int
) -> list[dict[str, Tensor]]:
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


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
