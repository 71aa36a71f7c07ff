"""Files of a feature cache: shards and an index, all safetensors, written whole or not at all.

A shard carries its own part of the index as tensors (`index.…`) beside the data, and the SHA-256 of
all of them, so that a cache can be indexed from its shards alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError
from trainer.runlog import atomic_file
from trainer.runlog.atomic_file import part_of, sha256_of, sync, write_whole
from trainer.runlog.json_file import parse, read_object

LATENTS, TEXTS = "latents", "texts"
DOCUMENT, JOB = "features.json", "job.json"
NUMBERS = {  # dtypes of safetensors
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "U64": "<u8",
    "I32": "<i4",
    "U32": "<u4",
}
STORED = {"fp16": "F16", "bf16": "BF16", "fp32": "F32"}  # by the names of configs and options
_META = "trainer"
_LARGEST_HEADER = 100 << 20  # safetensors' own limit


class FeaturesError(TrainerError):
    """A feature cache that cannot be used; names the file or the difference, and what to run."""

    exit_code = 2


@dataclass(frozen=True)
class Piece:
    """One tensor in a file, or about to be: `data` its bytes, `kind` a safetensors dtype."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def of(cls, name: str, values: NDArray[Any] | Sequence[Any], kind: str) -> Piece:
        # The dtype at once: a list of large and small integers would become floats on the way.
        array = np.ascontiguousarray(values, NUMBERS[kind])
        return cls(name, kind, array.shape, array.reshape(-1).view(np.uint8).data)


@dataclass(frozen=True)
class Header:
    tensors: Mapping[str, tuple[str, tuple[int, ...], int, int]]  # kind, shape, first byte, size
    meta: Mapping[str, Any]
    size: int  # of the whole file, as the header says
    data_at: int
    digest: str  # SHA-256 (hex) of the header itself

    def array(self, path: Path, name: str) -> NDArray[Any]:
        """A tensor of numbers, mapped from the file. Raises FeaturesError where there is none."""
        try:
            kind, shape, at, size = self.tensors[name]
            dtype = np.dtype(NUMBERS[kind])
            if min((0, *shape)) < 0 or math.prod(shape) * dtype.itemsize != size:
                raise ValueError(f"{name} of shape {list(shape)} has {size:,} bytes")
            return np.memmap(path, dtype, "r", at, shape) if size else np.empty(shape, dtype)
        except KeyError as error:
            raise damaged(path, f"it has no {error.args[0]}") from None
        except (OSError, ValueError, OverflowError) as error:
            raise damaged(path, str(error)) from None


def write(path: Path, pieces: Sequence[Piece], meta: Mapping[str, Any]) -> None:
    """Write a safetensors file, whole or not at all. Tensors stand in the order given."""
    digest = hashlib.sha256()
    table: dict[str, Any] = {}
    at = 0
    for piece in pieces:
        digest.update(piece.data)
        span = [at, at + len(piece.data)]
        table[piece.name] = {"dtype": piece.kind, "shape": piece.shape, "data_offsets": span}
        at = span[1]
    # One entry: safetensors gives no order to several.
    own = json.dumps({**meta, "sha256": digest.hexdigest()})
    header = json.dumps({"__metadata__": {_META: own}, **table}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with part_of(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for piece in pieces:
            file.write(piece.data)
    sync(path.parent)


def read_header(path: Path) -> Header:
    """Raises FeaturesError for a file that is none of ours, cut off or too long."""
    try:
        with path.open("rb") as file:
            actual = os.fstat(file.fileno()).st_size
            length = struct.unpack("<Q", file.read(8))[0]
            if length > min(actual, _LARGEST_HEADER):
                raise ValueError("its header is longer than it")
            text = file.read(length)
        document = parse(text)
        meta = parse(document.pop("__metadata__")[_META])
        tensors, end = {}, 0
        for name, entry in document.items():
            first, last = entry["data_offsets"]
            shape = tuple(int(edge) for edge in entry["shape"])
            tensors[name] = (str(entry["dtype"]), shape, 8 + length + first, last - first)
            end = max(end, last)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise damaged(path, f"its header cannot be read ({error})") from None
    size = 8 + length + end
    if size != actual:
        raise damaged(path, f"it has {actual:,} bytes instead of {size:,}")
    return Header(tensors, meta, size, 8 + length, hashlib.sha256(text).hexdigest())


def verify(path: Path, header_digest: str) -> None:
    """Read a shard through. Raises FeaturesError for what is wrong with it."""
    header = read_header(path)
    if header.digest != header_digest:
        raise damaged(path, "its header is not the one that was written")
    try:
        digest = sha256_of(path, header.data_at)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None
    if digest != header.meta.get("sha256"):
        raise damaged(path, "its bytes are not those that were written")


def damaged(path: Path, why: str) -> FeaturesError:
    return FeaturesError(
        f"{path} is damaged: {why}",
        hint=f"python -m trainer.data features {path.parent} --check lists what is damaged; remove "
        "those files, then the command that made the cache makes them again",
    )


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(document, indent=1) + "\n")
    sync(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """None when it is not there. Raises FeaturesError when it cannot be read."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FeaturesError(f"{path} cannot be read: {error}") from None


def sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for name in {path.name[1:].rsplit(".", 2)[0] for path in folder.glob(".*.part")}:
        atomic_file.sweep(folder / name)
