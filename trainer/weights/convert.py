"""Any source to a safetensors file or a Hugging Face folder; PixArt to a whole STDiT3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.weights import architecture, load, write
from trainer.weights.report import LoadReport
from trainer.weights.source import find_source

FORMATS = ("safetensors", "hf-folder")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_KEPT = ("rope.freqs",)  # in bf16 the angles of distant frames are off by up to 0.4 rad
# Fields of STDiT3Config that describe the weights; the others say how a run uses them.
_ARCHITECTURE_FIELDS = (
    "input_sq_size", "in_channels", "patch_size", "hidden_size", "depth", "num_heads", "mlp_ratio",
    "pred_sigma", "caption_channels", "model_max_length", "qk_norm", "class_dropout_prob",
)  # fmt: skip
_STDIT_CONFIG = {"model_type": "STDiT3", "architectures": ["STDiT3"]}  # in upstream's words
# PixArt's shapes do not give its number of heads: 16 in every size that was published.
_OTHER_THAN_PIXART = ("num_heads", "patch_size", "qk_norm")


def convert(
    source: str,
    target: Path,
    *,
    to: str | None = None,
    dtype: str | None = None,
    pixart: bool = False,
    ema: bool = True,
    seed: int = 42,
    overwrite: bool = False,
    allow_partial: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> LoadReport | None:
    """Write `target` whole or not at all; a report with `pixart`. Raises CheckpointError."""
    found = find_source(source)
    tensors, _ = load.read_checkpoint(found, ema=ema)
    report, config = None, found.config
    if pixart:
        tensors, config, report = _from_pixart(source, tensors, seed, allow_partial)
    dtypes = write.dtypes_for(tensors, DTYPES[dtype] if dtype else None, _KEPT)
    total, done = write.total_bytes(tensors, dtypes), 0

    def wrote(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    if not config and (model := architecture.architecture_of(tensors)).kind == architecture.STDIT:
        config = {**_STDIT_CONFIG, **model.options}
    with write.whole_or_nothing(target, total, overwrite=overwrite) as part:
        if (to or target.suffix) in ("safetensors", ".safetensors"):
            write.write_file(part, tensors, dtypes, wrote)
        else:
            write.write_folder(part, tensors, config, dtypes, wrote)
    return report


def _from_pixart(
    source: str, tensors: Mapping[str, Tensor], seed: int, allow_partial: bool
) -> tuple[dict[str, Tensor], dict[str, Any], LoadReport]:
    from trainer.models.stdit import build_stdit

    found = architecture.architecture_of(tensors)
    if found.kind != architecture.PIXART:
        raise CheckpointError(f"{source} is not a PixArt model: it looks like {found.name}")
    sizes = {name: v for name, v in found.options.items() if name not in _OTHER_THAN_PIXART}
    torch.manual_seed(seed)
    model = build_stdit("STDiT3", **sizes)
    report = load.load_into(model, source, allow_partial=allow_partial)
    fields = asdict(model.config)
    own = {name: fields[name] for name in fields if name in _ARCHITECTURE_FIELDS}
    return dict(model.state_dict()), {**_STDIT_CONFIG, **own}, report
