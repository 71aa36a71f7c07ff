"""Which microbatches a config trains on, as shapes: no data, no encoders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config.load import Config
from trainer.data.plan.aspect import RATIO_NAMES
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.costs import latent_size
from trainer.errors import ConfigError

_RATIO = "0.56"  # 9:16
_OPEN_SORA_CHANNELS, _T5_CHANNELS = 4, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """One line of bucket_config at one aspect ratio."""

    resolution: str
    frames: int
    ratio: str
    height: int  # pixels
    width: int
    batch_size: int
    latent: tuple[int, int, int]  # T, H, W

    @property
    def name(self) -> str:
        """Resolution and length, as --bucket takes it."""
        return f"{self.resolution}:{self.frames}"

    def tokens(self, patch: Sequence[int]) -> int:
        """Of one clip."""
        return math.prod(-(-size // step) for size, step in zip(self.latent, patch, strict=True))


def shapes_of(
    config: Config, wanted: Sequence[str] = (), ratio: str | None = None
) -> tuple[Shape, ...]:
    """Every line of bucket_config that takes clips, or those `wanted` ("360p:102"), in its order.

    The aspect ratio is `ratio` ("9:16" or "0.56") where a resolution has it, else the nearest.
    Raises ConfigError for a bucket that is not there.
    """
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    name = _RATIO if ratio is None else RATIO_NAMES.get(ratio, ratio)
    try:
        target = float(name)
    except ValueError:
        raise ConfigError(f"aspect ratio {ratio!r} is neither height:width nor a number") from None
    shapes = []
    for slot in (slot for slot in buckets.slots if slot.batch_size >= 1):
        sizes = slot.resolution.sizes
        key = min(sizes, key=lambda name: abs(float(name) - target))
        height, width = sizes[key]
        latent = latent_size(config.vae.type, (slot.frames, height, width))
        of_slot = slot.resolution.name, slot.frames, key, height, width, slot.batch_size
        shapes.append(Shape(*of_slot, latent))
    names = [shape.name for shape in shapes]
    for name in wanted:
        if name not in names:
            raise ConfigError(f"there is no bucket {name}; choose one of {', '.join(names)}")
    return tuple(shape for shape in shapes if not wanted or shape.name in wanted)


def model_options(config: Config) -> dict[str, Any]:
    """The model's fields, with what VAE and text encoder dictate."""
    text, vae = config.text_encoder, config.vae
    return {
        **config.model.options,
        "in_channels": vae.channels if vae.type == "identity" else _OPEN_SORA_CHANNELS,
        "caption_channels": text.d_model if text.type == "tiny_t5" else _T5_CHANNELS,
        "model_max_length": text.model_max_length,
    }


def as_bucket_config(config: Config, found: Mapping[tuple[str, int], int]) -> str:
    """The config's bucket_config as Python text with other batch sizes, by (resolution, frames).

    Probabilities stay; a bucket that fits not even one clip is closed: (0.0, None).
    """
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    lines: dict[str, list[str]] = {}
    for slot in sorted(buckets.slots, key=lambda slot: (slot.resolution.pixels, slot.frames)):
        batch = found.get((slot.resolution.name, slot.frames), slot.batch_size)
        chance = f"{slot.keep}" if slot.take is None else f"({slot.keep}, {slot.take})"
        entry = f"({chance}, {batch})" if batch else "(0.0, None)"
        lines.setdefault(slot.resolution.name, []).append(f"{slot.frames}: {entry}")
    body = [f"    {name!r}: {{{', '.join(entries)}}}," for name, entries in lines.items()]
    return "\n".join(["bucket_config = {", *body, "}"])
