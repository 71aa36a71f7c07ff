"""What model a set of tensors is, read off their names and shapes: never off a file's name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

STDIT, PIXART, PIXART_DIFFUSERS = "STDiT3", "PixArt", "PixArt of diffusers"
VAE, KL, T5, UNKNOWN = "Open-Sora VAE 1.2", "AutoencoderKL", "T5 encoder", "unknown"

# Name of upstream's registry -> what tells the sizes apart.
_SIZES = {
    "STDiT3-XL/2": {"depth": 28, "hidden_size": 1152, "num_heads": 16},
    "STDiT3-3B/2": {"depth": 28, "hidden_size": 1872, "num_heads": 26},
}
_NUMBERS = (
    "depth",
    "hidden_size",
    "num_heads",
    "mlp_ratio",
    "patch_size",
    "in_channels",
    "pred_sigma",
    "qk_norm",
    "caption_channels",
    "model_max_length",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """`name` for people; `options` are the fields of STDiT3Config that the shapes fix."""

    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def differences(self, wanted: Mapping[str, Any]) -> list[str]:
        """In words, where these weights and a model with the fields `wanted` are not the same."""
        return [
            f"{name} {self.options[name]} (model: {wanted[name]})"
            for name in _NUMBERS
            if name in self.options and name in wanted and self.options[name] != wanted[name]
        ]


def architecture_of(tensors: Mapping[str, Tensor]) -> Architecture:
    """Never raises: odd shapes make it less sure, in the end `unknown`."""
    names = tensors.keys()
    if any(name.startswith("spatial_blocks.") for name in names):
        return _stdit(tensors, "spatial_blocks", STDIT)
    if "blocks.0.scale_shift_table" in names and "x_embedder.proj.weight" in names:
        return _stdit(tensors, "blocks", PIXART)
    if (
        any(name.startswith("transformer_blocks.") for name in names)
        and "pos_embed.proj.weight" in names
    ):
        return Architecture(PIXART_DIFFUSERS, "PixArt in diffusers' layout")
    if any(name.startswith("temporal_vae.") for name in names):
        spatial = any(name.startswith("spatial_vae.") for name in names)
        return Architecture(VAE, VAE if spatial else f"{VAE}, its temporal part")
    if "encoder.conv_in.weight" in names and "decoder.conv_in.weight" in names:
        return Architecture(KL, "AutoencoderKL of diffusers")
    if "encoder.block.0.layer.0.SelfAttention.q.weight" in names:
        return Architecture(T5, _t5_name(tensors))
    return Architecture(UNKNOWN, UNKNOWN)


def _t5_name(tensors: Mapping[str, Tensor]) -> str:
    table = tensors.get("shared.weight", tensors.get("encoder.embed_tokens.weight"))
    return T5 if table is None or table.ndim != 2 else f"{T5} of width {table.shape[1]}"


def _stdit(tensors: Mapping[str, Tensor], stem: str, kind: str) -> Architecture:
    options: dict[str, Any] = {"depth": _count(tensors, stem)}
    patch = tensors.get("x_embedder.proj.weight")
    if patch is not None and patch.ndim >= 4:
        options["hidden_size"], options["in_channels"] = patch.shape[0], patch.shape[1]
        options["patch_size"] = tuple(patch.shape[2:]) if patch.ndim == 5 else (1, *patch.shape[2:])
        options |= _from_shapes(tensors, stem, options)
    if kind == PIXART:
        rows = options.get("model_max_length")
        sigma = rows == 300 and not any(name.startswith("csize_embedder") for name in tensors)
        letter = "Σ" if sigma else "α"
        large = options.get("hidden_size") == 1152 and options["depth"] == 28
        return Architecture(kind, f"PixArt-{letter}{' XL/2' if large else ''}", options)
    for name, size in _SIZES.items():
        if all(options.get(key) == value for key, value in size.items()):
            return Architecture(kind, name, options)
    return Architecture(kind, STDIT, options)


def _from_shapes(
    tensors: Mapping[str, Tensor], stem: str, options: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    width = options["hidden_size"]
    final = tensors.get("final_layer.linear.weight")
    if final is not None:
        values = math.prod(options["patch_size"]) * options["in_channels"]
        found["pred_sigma"] = final.shape[0] == 2 * values
    hidden = tensors.get(f"{stem}.0.mlp.fc1.weight")
    if hidden is not None:
        found["mlp_ratio"] = hidden.shape[0] / width
    found["qk_norm"] = f"{stem}.0.attn.q_norm.weight" in tensors
    null = tensors.get("y_embedder.y_embedding")
    if null is not None and null.ndim == 2:
        found["model_max_length"], found["caption_channels"] = null.shape
    frequencies = tensors.get("rope.freqs")
    if frequencies is not None and frequencies.numel():
        found["num_heads"] = width // (2 * frequencies.numel())
    return found


def _count(tensors: Mapping[str, Tensor], stem: str) -> int:
    block = re.compile(rf"{stem}\.(\d+)\.")
    return len({found[1] for name in tensors if (found := block.match(name))})
