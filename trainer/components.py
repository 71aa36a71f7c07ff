"""Builds what a config describes, for training and sampling: VAE, text encoder, flow, model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.config.load import Config
from trainer.diffusion.frame_masks import FrameMasks, build_masks
from trainer.diffusion.rectified_flow import RectifiedFlow, build_flow
from trainer.errors import CheckpointError, ConfigError
from trainer.models.activation_checkpointing import GradCheckpoint
from trainer.models.attention.table import read_table
from trainer.models.block import fp8
from trainer.models.memory import MemoryBudget
from trainer.models.stdit import STDiT3, build_stdit
from trainer.models.stdit_config import config_of
from trainer.models.text import TextEncoder, build_tiny_t5, check_folder
from trainer.models.vae.interface import IdentityVAE, VideoVAE
from trainer.weights.hub import HUB_ID, download
from trainer.weights.load import load_weights
from trainer.weights.source import HUB_FILES, find_source, is_on_hub

if TYPE_CHECKING:
    from trainer.models.vae.video import OpenSoraVAE

TINY_T5 = "text_encoder"  # folder in the run directory
_TEXT_FILES = ["*.json", "*.model", "*.safetensors", "*.bin"]  # of the hub


@dataclass(frozen=True, slots=True)
class Parts:
    """The model has fresh weights, on the CPU in fp32; the encoders are as they were saved."""

    vae: VideoVAE
    text: TextEncoder
    flow: RectifiedFlow
    model: STDiT3
    masks: FrameMasks  # frames that training clips are given


def make_tiny_text_encoder(config: Config, run_dir: Path, texts: Iterable[str]) -> None:
    """Write the run's own encoder over the words of `texts` if asked for; keep an existing one."""
    settings = config.text_encoder
    folder = run_dir / TINY_T5
    if settings.type == "tiny_t5" and not folder.is_dir():
        sizes = (settings.d_model, settings.num_layers, settings.initializer_factor)
        build_tiny_t5(folder, texts, *sizes)


def build_parts(
    config: Config,
    run_dir: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    empty: bool = False,
    encoders: tuple[Any, Any] | None = None,
    in_fp8: bool = False,
) -> Parts:
    """All parts, for a device ("cuda", "cpu"); `dtype` is that of VAE and text encoder, and of the
    model when it computes; `in_fp8`: but for its blocks' large products, in training. Raises
    ConfigError, CheckpointError, EngineError.

    With `empty` the model is on the meta device until its weights are loaded: making 1.2 billion
    random numbers takes 16 CPU seconds. `encoders` are those of a feature cache.
    """
    if encoders is None:
        encoders = build_vae(config.vae, dtype), build_text_encoder(config, run_dir, dtype)
    vae, text = encoders
    # The encoders decide these.
    options = config.model.options | {
        "in_channels": vae.out_channels,
        "caption_channels": text.channels,
        "model_max_length": text.max_length,
    }
    with torch.device("meta") if empty else nullcontext():
        model = build_stdit(config.model.type, **options)
    model.enable_grad_checkpoint(config.grad_checkpoint, config.offload_activations)
    model.use_positions(config.positions)
    if config.attention_table is not None:
        model.use_attention(read_table(config.attention_table))
    ways = {"fused": config.fused_blocks, "compiled": config.compile, "in_fp8": in_fp8}
    model.run_blocks_by(device, dtype.itemsize, **ways)
    masks = build_masks(config.mask_ratios)
    return Parts(vae, text, build_flow(config.scheduler), model, masks)


def build_text_encoder(config: Config, run_dir: Path, dtype: torch.dtype) -> TextEncoder:
    """The config's text encoder; a tiny one is in `run_dir`. Raises ConfigError."""
    settings = config.text_encoder
    folder = run_dir / TINY_T5 if settings.type == "tiny_t5" else _text_folder(settings)
    return TextEncoder.from_folder(folder, settings.model_max_length, dtype)


def _text_folder(settings: Any) -> Path:
    """Of a T5 encoder, from the hub if it is named so. Raises ConfigError."""
    if settings.from_pretrained is None:
        raise ConfigError("text_encoder.from_pretrained must name the folder of a T5 encoder")
    folder = Path(settings.from_pretrained)
    if _is_text_on_hub(settings):
        try:
            folder = download(settings.from_pretrained, allow_patterns=_TEXT_FILES)
        except CheckpointError as error:
            raise ConfigError(str(error), hint=error.hint) from None
    return folder


def _is_text_on_hub(settings: Any) -> bool:
    place = settings.from_pretrained
    return bool(place and HUB_ID.fullmatch(place) and not Path(place).is_dir())


def hub_parts(config: Config) -> list[tuple[str, list[str]]]:
    """What a run takes from the hub or its cache: repositories, and patterns of their files."""
    found, vae, text = [], config.vae, config.text_encoder
    if config.load is None:
        found.append((config.model.from_pretrained, HUB_FILES))
    if config.dataset.features is None and vae.type != "identity":
        found.append((vae.from_pretrained, HUB_FILES))
    parts = [(place, patterns) for place, patterns in found if place and is_on_hub(place)]
    if config.dataset.features is None and text.type != "tiny_t5" and _is_text_on_hub(text):
        parts.append((str(text.from_pretrained), _TEXT_FILES))
    return parts


def fetch(parts: Iterable[tuple[str, list[str]]], lives: Callable[[], None]) -> None:
    """Download what is missing of `hub_parts`; `lives()` says that it goes on. Raises
    CheckpointError."""
    for repository, patterns in parts:
        download(repository, lives=lives, allow_patterns=patterns)


def check_model(config: Config) -> None:
    """Whether the model can be trained as the config says, as far as that depends on no device.
    Raises ConfigError."""
    model = config_of(config.model.type, config.model.options)
    GradCheckpoint.parse(config.grad_checkpoint).require_pairs(model.depth)
    if config.attention_table is not None:
        read_table(config.attention_table)
    if config.fp8_linears:
        fp8.require_widths(model)


def check_encoders(config: Config) -> None:
    """Whether VAE and text encoder can be had, from their files' names and shapes, before anything
    is made. Raises ConfigError, CheckpointError."""
    if config.text_encoder.type != "tiny_t5":
        check_folder(_text_folder(config.text_encoder))
    if config.vae.type != "identity":
        find_source(_vae_place(config.vae)).read(shapes_only=True)


def build_vae(settings: Any, dtype: torch.dtype = torch.float32) -> VideoVAE:
    """The VAE of a config's `vae` section, on the CPU. Raises ConfigError, CheckpointError."""
    if settings.type == "identity":
        return IdentityVAE(settings.channels)
    place = _vae_place(settings)
    limit = None if settings.memory_gb is None else int(settings.memory_gb * 1e9)
    own = {name: getattr(settings, name) for name in ("micro_frame_size", "shift", "scale")}
    return load_vae(place, dtype, MemoryBudget(limit), own)


def _vae_place(settings: Any) -> str:
    if settings.from_pretrained is None:
        what = f"the weights of {settings.type}: a file, a folder or a hub id"
        hint = "--vae.from-pretrained hpcai-tech/OpenSora-VAE-v1.2"
        raise ConfigError(f"vae.from_pretrained must name {what}", hint=hint)
    return str(settings.from_pretrained)


def load_vae(
    place: str | Path,
    dtype: torch.dtype = torch.float32,
    budget: MemoryBudget | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> OpenSoraVAE:
    """The VAE of a file, a folder or (online) a hub id, on the CPU. Raises CheckpointError.

    Sizes are those of a config.json beside the weights, else the published ones. `overrides` of
    micro_frame_size, shift and scale win over what the weights say.
    """
    # Here because it brings torch modules that the identity does not need.
    from trainer.models.vae.spatial import modern_names
    from trainer.models.vae.video import OpenSoraVAE, VideoVAESettings

    source = find_source(place)
    with torch.device("meta"):  # no time spent on numbers that are overwritten
        vae = OpenSoraVAE(VideoVAESettings.from_dict(source.config), budget)
    vae.to_empty(device="cpu")
    # shift and scale stay fp32: bf16 rounds 3.85 to 3.84375
    vae.spatial_vae.to(dtype)
    vae.temporal_vae.to(dtype)
    load_weights(vae, modern_names(source.read()), place)
    vae.override({name: value for name, value in (overrides or {}).items() if value is not None})
    return vae
