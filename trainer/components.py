"""Builds what a config describes, for training and sampling: VAE, text encoder, flow, model."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.config.load import Config
from trainer.diffusion.frame_masks import FrameMasks, build_masks
from trainer.diffusion.rectified_flow import RectifiedFlow, build_flow
from trainer.errors import ConfigError
from trainer.models.stdit import STDiT3, build_stdit
from trainer.models.text import TextEncoder, build_tiny_t5
from trainer.models.vae.build import VideoVAE, build_vae

TINY_T5 = "text_encoder"  # folder in the run directory


@dataclass(frozen=True, slots=True)
class Parts:
    """The model has fresh weights, on the CPU in fp32; the encoders are as they were saved."""

    vae: VideoVAE
    text: TextEncoder
    flow: RectifiedFlow
    model: STDiT3
    masks: FrameMasks  # frames that training clips are given


def make_tiny_text_encoder(config: Config, run_dir: Path, texts: Iterable[str]) -> None:
    """Where the config asks for one, write the run's own encoder over the words of `texts`.

    One process of a run calls this, before any calls `build_parts`. An encoder that is already
    there stays: a resumed run must see the same features.
    """
    settings = config.text_encoder
    folder = run_dir / TINY_T5
    if settings.type == "tiny_t5" and not folder.is_dir():
        build_tiny_t5(
            folder,
            texts,
            d_model=settings.d_model,
            num_layers=settings.num_layers,
            initializer_factor=settings.initializer_factor,
        )


def build_parts(
    config: Config,
    run_dir: Path,
    dtype: torch.dtype = torch.float32,
    *,
    empty: bool = False,
    encoders: tuple[Any, Any] | None = None,
) -> Parts:
    """All parts; `dtype` is that of VAE and text encoder.

    With `empty` the model has no memory yet (meta device) and gets it with its weights, by
    trainer.weights: making 1.2 billion random numbers first takes 16 CPU seconds. `encoders` stand
    for VAE and text encoder where those have done their work (trainer.data.loader.features_loader).
    Raises ConfigError for what does not fit or exist, CheckpointError for weights that cannot be
    read.
    """
    if encoders is None:
        encoders = build_vae(config.vae, dtype), build_text_encoder(config, run_dir, dtype)
    vae, text = encoders
    options = {
        **config.model.options,
        # What the encoders dictate.
        "in_channels": vae.out_channels,
        "caption_channels": text.channels,
        "model_max_length": text.max_length,
    }
    with torch.device("meta") if empty else nullcontext():
        model = build_stdit(config.model.type, **options)
    model.enable_grad_checkpoint(config.grad_checkpoint, config.offload_activations)
    model.use_positions(config.positions)
    if config.compile:
        model.compile_blocks()
    masks = build_masks(config.mask_ratios)
    return Parts(vae, text, build_flow(config.scheduler), model, masks)


def build_text_encoder(config: Config, run_dir: Path, dtype: torch.dtype) -> TextEncoder:
    """The config's text encoder; a tiny one lies in `run_dir`. Raises ConfigError."""
    settings = config.text_encoder
    if settings.type == "tiny_t5":
        folder = run_dir / TINY_T5
    elif settings.type != "t5":
        raise ConfigError(f"text_encoder.type {settings.type!r} is not known: t5 or tiny_t5")
    elif settings.from_pretrained is None:
        raise ConfigError("text_encoder.from_pretrained must name the folder of a T5 encoder")
    else:
        folder = Path(settings.from_pretrained)
    return TextEncoder.from_folder(folder, settings.model_max_length, dtype)
