"""The weights at a path: model, tensors by prefix, config. Reads shapes, not data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.errors import CheckpointError
from trainer.runlog.json_file import read_object
from trainer.weights.architecture import architecture_of
from trainer.weights.report import fold
from trainer.weights.source import Source, find_source

_BUFFERS = ("y_embedder.y_embedding",)  # a state dict has it, its model does not count it


def inspect(place: str) -> dict[str, Any]:
    """Source, layout, model, parameters, bytes, dtypes, groups by prefix, config, average.

    Raises CheckpointError for what cannot be read.
    """
    source = find_source(place)
    tensors = source.read(shapes_only=True)
    found = architecture_of(tensors)
    return {
        "source": str(place),
        "layout": source.layout,
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in source.files],
        "model": found.name,
        "shapes_say": _plain(found.options),
        "tensors": len(tensors),
        "parameters": sum(t.numel() for name, t in tensors.items() if name not in _BUFFERS),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        "dtypes": dtypes(tensors.values()),
        "groups": groups(tensors),
        "keys": {name: [_dtype(t), *t.shape] for name, t in tensors.items()},
        "config": source.config,
        "run": _run_config(source),
        "average": None if source.average is None else _average(source.average),
    }


def groups(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Tensors by prefix, numbered blocks as one, with counts, parameters and dtypes."""
    by_prefix: dict[str, list[str]] = {}
    for name in tensors:
        by_prefix.setdefault(fold([name])[0][0].split("[")[0], []).append(name)
    rows = []
    for names in by_prefix.values():
        members = [tensors[name] for name in names]
        rows.append(
            {
                "prefix": fold(names)[0][0],
                "tensors": len(names),
                "parameters": sum(tensor.numel() for tensor in members),
                "dtypes": dtypes(members),
                "example": {names[0]: list(members[0].shape)},
            }
        )
    return rows


def dtypes(tensors: Iterable[Tensor]) -> dict[str, int]:
    """dtype -> number of tensors."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[_dtype(tensor)] = counts.get(_dtype(tensor), 0) + 1
    return counts


def _average(source: Source) -> dict[str, Any]:
    try:
        tensors = source.read(shapes_only=True)
    except CheckpointError as error:
        return {"layout": source.layout, "error": str(error)}
    flat = sum(tensor.ndim == 1 for tensor in tensors.values()) == len(tensors) > 1
    return {
        "layout": source.layout,
        "tensors": len(tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
        "whole": not flat,  # flat pieces are one rank's part
    }


def _run_config(source: Source) -> dict[str, Any]:
    """Of a checkpoint inside its run directory: the run's config."""
    try:
        found = read_object(source.path.resolve().parent / "config.json")
    except (OSError, ValueError):
        return {}
    config = found.get("config", {})
    keys = ("model", "vae", "text_encoder", "scheduler", "dtype", "ema_decay")
    return {key: config[key] for key in keys if isinstance(config, dict) and key in config}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in options.items()}


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_lines(found: Mapping[str, Any]) -> list[str]:
    """For people."""
    kinds = ", ".join(f"{count} {name}" for name, count in found["dtypes"].items())
    size = f"{found['parameters']:,} parameters in {found['tensors']} tensors"
    lines = [
        f"{found['model']}: {size} ({kinds}), {found['bytes'] / 1e9:.2f} GB",
        f"  {found['layout']}, {len(found['files'])} files: {_names(found['files'])}",
    ]
    width = max((len(group["prefix"]) for group in found["groups"]), default=0)
    for group in found["groups"]:
        ((name, shape),) = group["example"].items()
        lines.append(
            f"  {group['prefix']:<{width}}  {group['tensors']:>4}  {group['parameters']:>15,}  "
            f"{'/'.join(group['dtypes'])}  {name} {'x'.join(map(str, shape)) or 'scalar'}"
        )
    if found["shapes_say"]:
        options = ", ".join(f"{name} {value}" for name, value in found["shapes_say"].items())
        lines.append(f"  shapes say: {options}")
    for title, config in (("config.json", found["config"]), ("run", found["run"].get("model"))):
        if config:
            lines.append(f"  {title}: {json.dumps(config)}")
    if found["average"]:
        average = found["average"]
        state = average.get("error") or (
            f"{average['parameters']:,} parameters in {average['tensors']} tensors"
            + ("" if average["whole"] else ", flat: one rank's part only")
        )
        lines.append(f"  average: {state}")
    return lines


def _names(files: list[dict[str, Any]]) -> str:
    names = [str(Path(file["name"])) for file in files]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
