"""Optimizer state on disk: one safetensors file per rank with flat fp32 parts of each parameter.

A flattened parameter is cut in equal parts (whole rows where the engine holds rows), the last one
shorter or padded. Part r is `<parameter>/<kind>` in `rank-{r}-of-{world}.safetensors`, kind being
master, exp_avg or exp_avg_sq. Any other world size reads the pieces it needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.runlog.json_file import parse
from trainer.weights.write import write_file

_NAME = re.compile(r"rank-(\d{5})-of-(\d{5})\.safetensors")


class Facts(TypedDict):
    """Small JSON beside the tensors."""

    engine: str
    steps: dict[str, int]  # optimizer steps by parameter


def part_length(numel: int, world: int) -> int:
    """Elements of one rank's part, padding included."""
    return -(-numel // world)


def part_of(whole: Tensor, rank: int, world: int) -> Tensor:
    """A rank's flat part of a whole parameter, zeros behind its end."""
    length = part_length(whole.numel(), world)
    flat = whole.detach().reshape(-1)[rank * length : (rank + 1) * length]
    return torch.nn.functional.pad(flat, (0, length - flat.numel()))


def write(
    directory: Path, rank: int, world: int, state: Mapping[str, Tensor], facts: Facts | None = None
) -> Path:
    """Write one rank's file."""
    path = directory / f"rank-{rank:05d}-of-{world:05d}.safetensors"
    write_file(path, state, metadata={"facts": json.dumps({"schema": 1, **(facts or {})})})
    return path


class Shards:
    """The files of a directory, read piecewise. Raises `CheckpointError` when one is missing."""

    def __init__(self, directory: Path) -> None:
        matches = [(_NAME.fullmatch(p.name), p) for p in directory.glob("rank-*.safetensors")]
        found = {(int(match[1]), int(match[2])): path for match, path in matches if match}
        worlds = {world for _, world in found}
        if len(worlds) != 1:
            found_instead = "files of several world sizes" if worlds else "no optimizer state"
            raise CheckpointError(f"{directory} holds {found_instead}")
        self.world = worlds.pop()
        missing = [rank for rank in range(self.world) if (rank, self.world) not in found]
        if missing:
            raise CheckpointError(f"{directory}: the files of ranks {missing} are missing")
        self.directory = directory
        try:
            self._files = [safe_open(found[(rank, self.world)], "pt") for rank in range(self.world)]
            self.facts: Facts = parse(self._files[0].metadata()["facts"])
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise CheckpointError(f"{directory} cannot be read: {error}") from None
        self._keys = set(self._files[0].keys())

    def read(self, key: str, numel: int, rank: int, world: int) -> Tensor:
        """The part that `rank` of `world` holds of a parameter of `numel` elements."""
        if key not in self._keys:
            raise CheckpointError(f"{self.directory} has no {key}: it is of another model")
        own, theirs = part_length(numel, world), self._length(key, 0)
        if theirs != part_length(numel, self.world):  # rows: all of them, without padding
            held = sum(self._length(key, file) for file in range(self.world))
            if held != numel:
                has = f"{self.directory}: {key} has {held:,} elements"
                raise CheckpointError(f"{has}, the model's has {numel:,}")
        start, end = rank * own, min((rank + 1) * own, numel)
        pieces = []
        while start < end:
            file, offset = divmod(start, theirs)
            until = min(end, (file + 1) * theirs)
            pieces.append(self._files[file].get_slice(key)[offset : offset + until - start])
            start = until
        flat = torch.cat(pieces) if pieces else torch.empty(0)
        return torch.nn.functional.pad(flat, (0, own - flat.numel()))

    def _length(self, key: str, file: int) -> int:
        return int(self._files[file].get_slice(key).get_shape()[0])
