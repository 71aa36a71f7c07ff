"""The weights at a path: model, tensors by prefix, config. Reads shapes, not data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from trainer.errors import CheckpointError
from trainer.runlog import units
from trainer.runlog.json_file import read_object
from trainer.weights import architecture, report, tensorfile, write
from trainer.weights.source import Source, find_source

_BUFFERS = ("y_embedder.y_embedding",)  # a state dict has it, its model does not count it


def inspect(place: str) -> dict[str, Any]:
    """What is at a place, as plain data. Raises CheckpointError for what cannot be read."""
    source = find_source(place)
    tensors = source.read(shapes_only=True)
    found = architecture.architecture_of(tensors)
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in found.options.items()}
    return {
        "source": str(place),
        "layout": source.layout,
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in source.files],
        "model": found.name,
        "shapes_say": options,
        "tensors": len(tensors),
        "parameters": _parameters(t for name, t in tensors.items() if name not in _BUFFERS),
        "bytes": write.total_bytes(tensors),
        "dtypes": Counter(map(tensorfile.dtype_name, tensors.values())),
        "groups": _groups(tensors),
        "keys": {name: [tensorfile.dtype_name(t), *t.shape] for name, t in tensors.items()},
        "config": source.config,
        "run": _run_config(source),
        "average": None if source.average is None else _average(source.average),
    }


def _groups(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Tensors by prefix, numbered blocks as one, with counts, parameters and dtypes."""
    rows = []
    for prefix, names in report.by_prefix(tensors).items():
        members = [tensors[name] for name in names]
        row = {"prefix": prefix, "tensors": len(names), "parameters": _parameters(members)}
        dtypes = Counter(map(tensorfile.dtype_name, members))
        rows.append({**row, "dtypes": dtypes, "example": {names[0]: list(members[0].shape)}})
    return rows


def _parameters(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _average(source: Source) -> dict[str, Any]:
    try:
        tensors = source.read(shapes_only=True)
    except CheckpointError as error:
        return {"layout": source.layout, "error": str(error)}
    flat = sum(tensor.ndim == 1 for tensor in tensors.values()) == len(tensors) > 1
    counts = {"tensors": len(tensors), "parameters": _parameters(tensors.values())}
    return {"layout": source.layout, **counts, "whole": not flat}  # flat: one rank's part


def _run_config(source: Source) -> dict[str, Any]:
    """Of a checkpoint inside its run directory: the run's config."""
    try:
        found = read_object(source.path.resolve().parent / "config.json")
    except (OSError, ValueError):
        return {}
    config = found.get("config", {})
    keys = ("model", "vae", "text_encoder", "scheduler", "dtype", "ema_decay")
    return {key: config[key] for key in keys if isinstance(config, dict) and key in config}


def as_lines(found: Mapping[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} {name}" for name, count in found["dtypes"].items())
    size = f"{found['parameters']:,} parameters in {found['tensors']} tensors"
    names = [file["name"] for file in found["files"]]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    lines = [
        f"{found['model']}: {size} ({kinds}), {units.size(found['bytes'])}",
        f"  {found['layout']}, {len(names)} files: {', '.join(names[:3])}{more}",
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
    if average := found["average"]:
        state = average.get("error")
        if state is None:
            state = f"{average['parameters']:,} parameters in {average['tensors']} tensors"
            state += "" if average["whole"] else ", flat: one rank's part only"
        lines.append(f"  average: {state}")
    return lines
