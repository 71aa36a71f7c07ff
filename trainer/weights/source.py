"""Where weights are: a file or folder of any layout, found by content; reads names and indexes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.errors import CheckpointError, PathError
from trainer.runlog.checkpoint_name import epoch_and_step
from trainer.runlog.json_file import read_object
from trainer.weights import checkpoints
from trainer.weights.hub import HUB_ID, download
from trainer.weights.tensorfile import SUFFIXES, read_file

# Beside a model's weights in folders that training programs write.
_NOT_WEIGHTS = re.compile(r"optim|scheduler|rng_state|training_args|^ema\.|random_states|^master\.")
HUB_FILES = ["*.json", *(f"*{suffix}" for suffix in SUFFIXES)]  # of a repository
_SHARD = re.compile(r"-\d{5}(-of-\d{5})?$")


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one set of weights, and what stands beside them."""

    path: Path  # file or folder that holds them
    layout: str  # for people: "safetensors folder", "checkpoint of Open-Sora", ...
    files: tuple[Path, ...]
    index: Collection[str] = ()  # tensors that the folder's index lists
    config: dict[str, Any] = field(default_factory=dict)  # config.json of a Hugging Face folder
    average: Source | None = None  # a checkpoint's EMA; of ours only the trained tensors

    def read(self, *, shapes_only: bool = False) -> dict[str, Tensor]:
        """All tensors; raises CheckpointError also for what the index names and no shard holds."""
        weights: dict[str, Tensor] = {}
        for file in self.files:
            more = read_file(file, shapes_only=shapes_only)
            if twice := weights.keys() & more.keys():
                raise CheckpointError(
                    f"{self.path} holds {min(twice)} twice, the second time in {file.name}",
                    hint=f"say which file: {', '.join(f.name for f in self.files[:4])}",
                )
            weights.update(more)
        if lost := sorted(set(self.index) - weights.keys()):
            raise CheckpointError(
                f"{self.path}: {len(lost)} tensors of the index are in no shard, first {lost[0]}"
            )
        return weights


def find_source(place: str | os.PathLike[str]) -> Source:
    """The weights at a path or hub id; a run is its newest checkpoint. Raises CheckpointError."""
    path = Path(os.path.expanduser(place))  # noqa: PTH111 - Path's own raises for ~nobody
    if path.is_file():
        if path.name.endswith(".index.json"):
            return _indexed(path)
        return Source(path, f"{path.suffix.lstrip('.') or 'file'} file", (path,))
    if path.is_dir():
        return _folder(path)
    if is_on_hub(place):
        return _folder(download(str(place), allow_patterns=HUB_FILES))
    raise PathError(f"there are no weights at {path}")


def is_on_hub(place: str | os.PathLike[str]) -> bool:
    """Whether `find_source` fetches it from the hub, or takes it from the hub's cache."""
    path = Path(os.path.expanduser(place))  # noqa: PTH111
    looks_like_a_path = str(place).endswith(SUFFIXES) or path.parent.is_dir() or path.exists()
    return HUB_ID.fullmatch(str(place)) is not None and not looks_like_a_path


def _folder(folder: Path) -> Source:
    if not (folder / checkpoints.MANIFEST).is_file() and _is_ours(folder):
        folder = checkpoints.find(folder)
    if (folder / checkpoints.MODEL).exists():
        return _checkpoint(folder)
    if (folder / "model_index.json").is_file():
        parts = sorted(p.name for p in folder.iterdir() if (p / "config.json").is_file())
        raise CheckpointError(
            f"{folder} is a diffusers pipeline of several models",
            hint=f"say which: {', '.join(str(folder / p) for p in parts)}" if parts else None,
        )
    for kind in ("safetensors", "bin"):
        if indexes := _of_weights(folder, f".{kind}.index.json"):
            return _indexed(indexes[0])
    for suffix in SUFFIXES:
        if files := _of_weights(folder, suffix):
            one_set = suffix == ".safetensors" or all(_SHARD.search(file.stem) for file in files)
            if len(files) > 1 and not one_set:
                raise CheckpointError(
                    f"{folder} holds {len(files)} files of weights",
                    hint=f"say which: {', '.join(file.name for file in files[:6])}",
                )
            return Source(folder, f"{suffix[1:]} folder", tuple(files), config=_config(folder))
    inside = sorted(path.name for path in folder.iterdir() if epoch_and_step(path.name))
    raise CheckpointError(
        f"{folder} has no file of weights ({', '.join(SUFFIXES)})",
        hint=f"say which checkpoint: {', '.join(inside[-4:])}" if inside else None,
    )


def _of_weights(folder: Path, suffix: str) -> list[Path]:
    return sorted(f for f in folder.glob(f"*{suffix}") if not _NOT_WEIGHTS.search(f.name))


def _is_ours(folder: Path) -> bool:
    """Whether it is a run directory or a part of a checkpoint of this trainer."""
    if (folder / checkpoints.LATEST).is_file() or checkpoints.complete(folder):
        return True
    return checkpoints.has_ranks(folder)


def _checkpoint(folder: Path) -> Source:
    inner = find_source(folder / checkpoints.MODEL)  # a file where Open-Sora saved without shards
    whose = "this trainer" if (folder / checkpoints.MANIFEST).is_file() else "Open-Sora"
    single = [folder / name for name in ("ema.safetensors", "ema.pt") if (folder / name).is_file()]
    average = None
    if (folder / checkpoints.EMA).is_dir():
        average = _folder(folder / checkpoints.EMA)
    elif single:
        average = Source(single[0], "average of Open-Sora", (single[0],))
    return replace(inner, path=folder, layout=f"checkpoint of {whose}", average=average)


def _indexed(index: Path) -> Source:
    folder = index.parent
    try:
        table = read_object(index)["weight_map"]
        table = {str(name): str(file) for name, file in table.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise CheckpointError(f"{index} is not a valid index of shards") from None
    names = sorted(set(table.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside or not names:
        raise CheckpointError(f"{index} names {outside[:1] or 'no files'}; shards lie beside it")
    files = tuple(folder / name for name in names)
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(files)} shards: {missing[0]}")
    kind = "safetensors" if ".safetensors." in index.name else "bin"
    return Source(folder, f"{kind} folder with an index", files, table, _config(folder))


def _config(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / "config.json")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: {error}") from None
