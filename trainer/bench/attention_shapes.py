"""Which attentions a config's buckets have: the kinds, and the numbers of keys of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.bench.shapes import model_options, shapes_of
from trainer.config.load import Config
from trainer.errors import ConfigError
from trainer.models.attention.table import KERNELS
from trainer.models.stdit_config import PRESETS, STDiT3Config

_FORM = re.compile(r"(spatial|temporal|text):(\d+)x(\d+)x(\d+)(?:x(\d+))?")


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Clips, frames and places of a frame, tokens of a caption (0: attention within the clip)."""

    kind: str  # spatial, temporal or text
    batch: int
    frames: int
    places: int
    text: int = 0
    heads: int = 16
    width: int = 72  # of a head

    @property
    def name(self) -> str:
        """As --shapes takes it."""
        sizes = [self.batch, self.frames, self.places, *([self.text] if self.text else [])]
        return f"{self.kind}:{'x'.join(map(str, sizes))}"

    @property
    def keys(self) -> int:
        """What the kernel is chosen by."""
        return {"spatial": self.places, "temporal": self.frames, "text": self.text}[self.kind]

    @property
    def tokens(self) -> int:
        return self.batch * self.frames * self.places


def shapes_of_config(config: Config, wanted: Sequence[str] = ()) -> list[AttentionShape]:
    """One shape for each kind and number of keys, that of the bucket with the most tokens.

    Buckets are those of `shapes_of`, at one aspect ratio. Rising keys. Raises ConfigError.
    """
    model = _model(config)
    heads, width = model.num_heads, model.hidden_size // model.num_heads
    text = config.text_encoder.model_max_length
    found: dict[tuple[str, int], AttentionShape] = {}
    for bucket in shapes_of(config, wanted):
        frames = -(-bucket.latent[0] // model.patch_size[0])
        places = bucket.tokens(model.patch_size) // frames
        for kind in KERNELS:
            tokens = text if kind == "text" else 0
            shape = AttentionShape(kind, bucket.batch_size, frames, places, tokens, heads, width)
            known = found.get((kind, shape.keys))
            if known is None or known.tokens < shape.tokens:
                found[kind, shape.keys] = shape
    return sorted(found.values(), key=lambda shape: (list(KERNELS).index(shape.kind), shape.keys))


def read_shapes(config: Config, names: Sequence[str]) -> list[AttentionShape]:
    """Shapes as --shapes names them, with the heads of the config's model. Raises ConfigError."""
    model = _model(config)
    shapes = []
    for name in names:
        match = _FORM.fullmatch(name)
        sizes = [int(size) for size in match.groups()[1:] if size] if match else []
        if match is None or 0 in sizes or (match[1] == "text") != (len(sizes) == 4):
            hint = "spatial:8x15x920, temporal:8x15x920 or text:8x15x920x300"
            text = f"--shapes {name!r} is not KIND:CLIPSxFRAMESxPLACES, for text with xTOKENS"
            raise ConfigError(text, hint=hint)
        batch, frames, places, *text_tokens = sizes
        heads, width = model.num_heads, model.hidden_size // model.num_heads
        tokens = sum(text_tokens)
        shapes.append(AttentionShape(match[1], batch, frames, places, tokens, heads, width))
    return shapes


def _model(config: Config) -> STDiT3Config:
    return STDiT3Config(**{**PRESETS.get(config.model.type, {}), **model_options(config)})
