"""Any source to a safetensors file or a Hugging Face folder; PixArt to a whole STDiT3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError, ConfigError
from trainer.weights.architecture import PIXART, STDIT, Architecture, architecture_of
from trainer.weights.load import load_into, read_source
from trainer.weights.report import LoadReport
from trainer.weights.source import find_source
from trainer.weights.write import (
    Progress,
    dtypes_for,
    total_bytes,
    whole_or_nothing,
    write_file,
    write_folder,
)

FORMATS = ("safetensors", "hf-folder")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KEPT = ("rope.freqs",)  # in bf16 the angles of distant frames are off by up to 0.4 rad
# Fields of STDiT3Config that say what the weights are; the others say how a run uses them.
ARCHITECTURE_FIELDS = (
    "input_sq_size", "in_channels", "patch_size", "hidden_size", "depth", "num_heads", "mlp_ratio",
    "pred_sigma", "caption_channels", "model_max_length", "qk_norm", "class_dropout_prob",
)  # fmt: skip


def convert(
    source: str,
    target: Path,
    *,
    to: str | None = None,
    dtype: str | None = None,
    start: str | None = None,
    ema: bool = True,
    seed: int = 42,
    overwrite: bool = False,
    allow_partial: bool = False,
    progress: Progress = lambda done, total: None,
) -> LoadReport | None:
    """Write `target`; whole or not at all. A checkpoint's average is taken where it has one.

    `to` is "safetensors" or "hf-folder", by the target's suffix when None. `start` "pixart" makes
    PixArt's weights the start of an STDiT3 of that size, what is new drawn from `seed`, and returns
    the report. Raises CheckpointError and ConfigError before anything is written.
    """
    to = to or ("safetensors" if target.suffix == ".safetensors" else "hf-folder")
    if to not in FORMATS:
        raise ConfigError(f"--to {to} must be one of {', '.join(FORMATS)}")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype} must be one of {', '.join(DTYPES)}")
    found = find_source(source)
    tensors, _ = read_source(found, ema)
    report = None
    config: Mapping[str, Any] = found.config
    if start == "pixart":
        tensors, config, report = _from_pixart(source, tensors, seed, allow_partial)
    elif start is not None:
        raise ConfigError(f"--from {start} is not known; there is pixart")
    dtypes = dtypes_for(tensors, DTYPES[dtype] if dtype else None, KEPT)
    total, done = total_bytes(tensors, dtypes), 0

    def wrote(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    with whole_or_nothing(target, total, overwrite=overwrite) as part:
        if to == "safetensors":
            write_file(part, tensors, dtypes, wrote)
        else:
            write_folder(part, tensors, config or config_of(tensors), dtypes, wrote)
    return report


def config_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A config.json in upstream's words for what the tensors are; empty where that is not known."""
    found = architecture_of(tensors)
    if found.kind != STDIT:
        return {}
    return _as_config(found)


def _as_config(found: Architecture) -> dict[str, Any]:
    return {"model_type": "STDiT3", "architectures": ["STDiT3"], **found.options}


def _from_pixart(
    source: str, tensors: Mapping[str, Tensor], seed: int, allow_partial: bool
) -> tuple[dict[str, Tensor], dict[str, Any], LoadReport]:
    from trainer.models.stdit import build_stdit

    found = architecture_of(tensors)
    if found.kind != PIXART:
        raise CheckpointError(f"{source} is not a PixArt model: it looks like {found.name}")
    # PixArt's shapes do not tell its number of heads: 16 in every size that was published.
    sizes = (
        "depth",
        "hidden_size",
        "in_channels",
        "mlp_ratio",
        "pred_sigma",
        "caption_channels",
        "model_max_length",
    )
    options = {name: found.options[name] for name in sizes if name in found.options}
    torch.manual_seed(seed)
    model = build_stdit("STDiT3", **options)
    report = load_into(model, source, allow_partial=allow_partial)
    chosen = {
        name: value for name, value in asdict(model.config).items() if name in ARCHITECTURE_FIELDS
    }
    config = _as_config(Architecture(STDIT, STDIT, chosen))
    return dict(model.state_dict()), config, report
