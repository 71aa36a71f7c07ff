"""What model a set of tensors is, read off their names and shapes: never off a file's name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trainer.models.stdit_config import PRESETS

STDIT, PIXART, PIXART_DIFFUSERS = "STDiT3", "PixArt", "PixArt of diffusers"
VAE, KL, T5, UNKNOWN = "Open-Sora VAE 1.2", "AutoencoderKL", "T5 encoder", "unknown"


@dataclass(frozen=True, slots=True)
class Architecture:
    """`name` for people; `options` are the fields of STDiT3Config that the shapes fix."""

    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)


def architecture_of(tensors: Mapping[str, Tensor]) -> Architecture:
    """Never raises: odd shapes make it less sure, in the end `unknown`."""
    names, parts = tensors.keys(), {name.partition(".")[0] for name in tensors if "." in name}
    if "spatial_blocks" in parts:
        return _stdit(tensors, "spatial_blocks", STDIT)
    if names >= {"blocks.0.scale_shift_table", "x_embedder.proj.weight"}:
        return _stdit(tensors, "blocks", PIXART)
    if "transformer_blocks" in parts and "pos_embed.proj.weight" in names:
        return Architecture(PIXART_DIFFUSERS, "PixArt in diffusers' layout")
    if "temporal_vae" in parts:
        return Architecture(VAE, VAE if "spatial_vae" in parts else f"{VAE}, its temporal part")
    if names >= {"encoder.conv_in.weight", "decoder.conv_in.weight"}:
        return Architecture(KL, "AutoencoderKL of diffusers")
    if "encoder.block.0.layer.0.SelfAttention.q.weight" in names:
        table = tensors.get("shared.weight", tensors.get("encoder.embed_tokens.weight"))
        width = "" if table is None or table.ndim != 2 else f" of width {table.shape[1]}"
        return Architecture(T5, T5 + width)
    return Architecture(UNKNOWN, UNKNOWN)


def _stdit(tensors: Mapping[str, Tensor], stem: str, kind: str) -> Architecture:
    block = re.compile(rf"{stem}\.(\d+)\.")
    numbers = {found[1] for name in tensors if (found := block.match(name))}
    options: dict[str, Any] = {"depth": len(numbers)}
    patch = tensors.get("x_embedder.proj.weight")
    if patch is not None and patch.ndim >= 4:
        options["hidden_size"], options["in_channels"] = patch.shape[0], patch.shape[1]
        options["patch_size"] = (1, *patch.shape[2:])[-3:]
        _read_shapes(tensors, stem, options)
    if kind == PIXART:
        has_sizes = any(name.startswith("csize_embedder") for name in tensors)
        letter = "Σ" if options.get("model_max_length") == 300 and not has_sizes else "α"
        large = options.get("hidden_size") == 1152 and options["depth"] == 28
        return Architecture(kind, f"PixArt-{letter}{' XL/2' if large else ''}", options)
    sizes = [name for name, size in PRESETS.items() if size and size.items() <= options.items()]
    return Architecture(kind, sizes[0] if sizes else STDIT, options)


def _read_shapes(tensors: Mapping[str, Tensor], stem: str, options: dict[str, Any]) -> None:
    width = options["hidden_size"]
    if (final := tensors.get("final_layer.linear.weight")) is not None:
        values = math.prod(options["patch_size"]) * options["in_channels"]
        options["pred_sigma"] = final.shape[0] == 2 * values
    if (hidden := tensors.get(f"{stem}.0.mlp.fc1.weight")) is not None:
        options["mlp_ratio"] = hidden.shape[0] / width
    options["qk_norm"] = f"{stem}.0.attn.q_norm.weight" in tensors
    null = tensors.get("y_embedder.y_embedding")
    if null is not None and null.ndim == 2:
        options["model_max_length"], options["caption_channels"] = null.shape
    frequencies = tensors.get("rope.freqs")
    if frequencies is not None and frequencies.numel():
        options["num_heads"] = width // (2 * frequencies.numel())


# Tensors by which other networks are known: (name, expression that some of its names match).
_OTHERS = (
    ("a LoRA", r"\.lora_(?:A|B|down|up)\.|^lora_"),
    ("FLUX, HunyuanVideo or Open-Sora 2", r"^(?:model\.)?(?:double|single)_blocks\.\d"),
    ("a model of ComfyUI or LDM", r"^model\.diffusion_model\."),
    ("a UNet of diffusers", r"^(?:down_blocks|mid_block|up_blocks)\."),
    ("a transformer of diffusers", r"^transformer_blocks\.\d"),
    ("Wan", r"^blocks\.\d+\.cross_attn\.norm_[qk]"),
)


def other_network(names: Iterable[str]) -> str:
    """Which known network has tensors of these names; "" for none."""
    every = list(names)
    found = (name for name, form in _OTHERS if any(re.search(form, one) for one in every))
    return next(found, "")
