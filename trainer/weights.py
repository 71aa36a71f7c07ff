"""Weights from disk: safetensors files, folders of shards, checkpoints of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.errors import CheckpointError

MODEL, EMA = "model", "ema"  # folders of a checkpoint


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors file, or of a folder with shards (and an index, if it has one).

    Raises CheckpointError for what is missing, cut off or of another format.
    """
    if path.is_dir():
        files = _shards(path)
    elif path.is_file():
        files = [path]
    else:
        raise CheckpointError(f"there are no weights at {path}")
    weights: dict[str, Tensor] = {}
    for file in files:
        if file.suffix != ".safetensors":
            raise CheckpointError(
                f"{file} is no .safetensors file; other formats are not built yet"
            )
        try:
            weights.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from None
    return weights


def _shards(folder: Path) -> list[Path]:
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if not indexes:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{folder} has no .safetensors file")
        return files
    try:
        names = set(json.loads(indexes[0].read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{indexes[0]} is no index of safetensors shards") from None
    files = [folder / str(name) for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(files)} shards: {missing[0]}")
    return files


def read_checkpoint(path: Path, *, ema: bool = True) -> tuple[dict[str, Tensor], bool]:
    """A model's weights from a run's checkpoint (or any `read_weights` path), and whether they are EMA.

    The average holds only what was trained; the rest (frozen and constant tensors) is the model's.
    """
    if not (path / MODEL).is_dir():
        return read_weights(path), False
    weights = read_weights(path / MODEL)
    if not ema or not (path / EMA).is_dir():
        return weights, False
    return {**weights, **read_weights(path / EMA)}, True


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Set every tensor of the model. Raises CheckpointError naming what is missing, extra or misshapen."""
    wanted = model.state_dict()
    missing = sorted(wanted.keys() - weights.keys())
    extra = sorted(weights.keys() - wanted.keys())
    shapes = [
        f"{name} {tuple(weights[name].shape)} for {tuple(wanted[name].shape)}"
        for name in sorted(wanted.keys() & weights.keys())
        if weights[name].shape != wanted[name].shape
    ]
    problems = [
        f"{len(names)} {word} ({names[0]})"
        for names, word in ((missing, "missing"), (extra, "unknown"), (shapes, "of another shape"))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{source} is not of this model: {', '.join(problems)}",
            hint="use the config the checkpoint was trained with",
        )
    model.load_state_dict(dict(weights))
