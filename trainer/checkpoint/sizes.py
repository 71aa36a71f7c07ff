"""Bytes of one checkpoint of a config, from the shapes of its model alone.

A checkpoint holds the model in working precision, the fp32 average of the trained weights, and
of each trained weight three fp32 values: master weight and AdamW's two moments (`EngineState` in
trainer.engine.base). Measured on the demo: 20.80 MB, predicted
20.70, the difference being the files' headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.load import Config
from trainer.models.stdit import build_stdit
from trainer.runlog.retention import OVERHEAD_BYTES

_AVERAGE = 4  # bytes of a trained weight in ema/: fp32
_OPTIMIZER = 12  # in optimizer/: fp32 master, exp_avg, exp_avg_sq
_LATENT_CHANNELS = 4  # of OpenSoraVAE_V1_2
_WORKING = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """Bytes of the tensors of one checkpoint; its documents are a few kB, and 8 bytes a clip."""

    model_bytes: int
    ema_bytes: int
    optimizer_bytes: int
    parameters: int  # all of the model
    trained: int  # of them, those that the optimizer changes

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.ema_bytes + self.optimizer_bytes

    @property
    def extra_bytes(self) -> int:
        """Needed beside it until it is complete: the average lies there twice for a while."""
        return self.ema_bytes + OVERHEAD_BYTES


def size_of(tensors: Mapping[str, Tensor], trained: int, dtype: str) -> CheckpointSize:
    """Of a state dict (meta tensors will do) with `trained` trained values, in `dtype`."""
    width = _WORKING[dtype].itemsize
    model = sum(
        tensor.numel() * (width if tensor.is_floating_point() else tensor.element_size())
        for tensor in tensors.values()
    )
    values = sum(tensor.numel() for tensor in tensors.values())
    return CheckpointSize(model, trained * _AVERAGE, trained * _OPTIMIZER, values, trained)


def size_of_model(model: nn.Module, dtype: str) -> CheckpointSize:
    """Of a model before it is spread over ranks."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return size_of(model.state_dict(), trained, dtype)


def predicted_size(config: Config) -> CheckpointSize:
    """Without weights, encoders or data: the published VAE and T5 are taken for given.

    Raises ConfigError for a model that cannot be built.
    """
    options: dict[str, Any] = dict(config.model.options)
    is_identity = config.vae.type == "identity"
    options["in_channels"] = config.vae.channels if is_identity else _LATENT_CHANNELS
    if config.text_encoder.type == "tiny_t5":
        options["caption_channels"] = config.text_encoder.d_model
    options["model_max_length"] = config.text_encoder.model_max_length
    with torch.device("meta"):
        model = build_stdit(config.model.type, **options)
    return size_of_model(model, config.dtype)
