"""Captions kept behind a frozen caption embedder: 1,152 numbers a token instead of T5's 4,096.

The embedder stays in the model (its weights belong to every checkpoint) and only gives its null
text for the captions that training drops.
"""

# B clips · L tokens · C channels of the encoder · D width of the model

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.load import Config
from trainer.data.features.cache import Features
from trainer.data.features.files import FeaturesError
from trainer.models.layers import CaptionEmbedder
from trainer.models.stdit import STDiT3, build_stdit
from trainer.weights.load import compare, read_checkpoint

_PREFIX = "y_embedder."
_FREEZE = "model.freeze_y_embedder = True"


class ProjectedCaptions(CaptionEmbedder):
    """Stands in an STDiT3 for the embedder whose parameters it shares; takes [B, 1, L, D]."""

    def __init__(self, embedder: CaptionEmbedder) -> None:
        nn.Module.__init__(self)
        self.y_proj = embedder.y_proj
        self.register_buffer("y_embedding", embedder.y_embedding)
        self.drop_probability = embedder.drop_probability

    def forward(self, y_B1LC: Tensor, columns: Tensor | None = None) -> Tensor:
        """As CaptionEmbedder's, with the same draws; what comes in has been projected."""
        if self.training and self.drop_probability > 0:
            dropped = torch.rand(y_B1LC.shape[0]) < self.drop_probability
            if bool(dropped.any()):
                dropped = dropped.to(y_B1LC.device)
                null_LD = self.y_proj(self.y_embedding.to(y_B1LC.dtype))
                y_B1LC = torch.where(dropped[:, None, None, None], null_LD, y_B1LC)
        return y_B1LC if columns is None else y_B1LC[:, :, columns.to(y_B1LC.device)]


class ProjectingEncoder:
    """A text encoder and the embedder behind it, for encoding."""

    def __init__(self, text: Any, embedder: CaptionEmbedder) -> None:
        self._text, self._embedder = text, embedder.eval()

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """[B, 1, L, D] and the mask int64 [B, L]."""
        y_B1LC, mask_BL = self._text.encode(texts)
        longest = int(mask_BL.sum(1).max())
        return self._embedder(y_B1LC[:, :, :longest]), mask_BL


def load_embedder(config: Config, channels: int, dtype: torch.dtype) -> CaptionEmbedder:
    """The caption embedder of the weights that training starts from, in the model's working dtype.
    Raises FeaturesError when it will not stay as it is, CheckpointError for other weights."""
    if not config.model.options.get("freeze_y_embedder"):
        raise FeaturesError(
            "--caption-embedder keeps what a frozen caption embedder gives, this config trains it",
            hint=f"{_FREEZE}, or leave --caption-embedder out",
        )
    place = config.model.from_pretrained
    if place is None:
        raise FeaturesError(
            "--caption-embedder needs the weights that training will start from",
            hint="--ckpt-path WEIGHTS",
        )
    length = config.text_encoder.model_max_length
    own = {"caption_channels": channels, "model_max_length": length}
    with torch.device("meta"):
        model = build_stdit(config.model.type, **{**config.model.options, **own})
    _, weights = compare(model, read_checkpoint(place, ema=False)[0], place)
    found = {n.removeprefix(_PREFIX): t for n, t in weights.items() if n.startswith(_PREFIX)}
    embedder = CaptionEmbedder(channels, model.config.hidden_size, 0.0, length)
    try:
        embedder.load_state_dict(found)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise FeaturesError(f"{place} has no caption embedder for this config: {first}") from None
    return embedder.to(dtype).requires_grad_(False)


def embedder_hash(embedder: nn.Module, dtype: torch.dtype) -> str:
    """SHA-256 of its weights as the model computes with them, whatever dtype stores them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(embedder.state_dict().items()):
        values = tensor.detach().to("cpu", dtype).contiguous()
        digest.update(f"{name} {list(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def use_projected(features: Features, model: STDiT3, dtype: torch.dtype) -> None:
    """Make a model with its weights take captions from a cache of projected ones. Raises
    FeaturesError when the model trains its embedder or has another one."""
    wanted = features.key["captions"]["embedder"]
    if wanted is None:
        return
    if not model.config.freeze_y_embedder:
        raise FeaturesError(
            f"the captions in {features.folder} were kept behind a frozen caption embedder, "
            "this run trains it",
            hint=f"{_FREEZE}, or encode without --caption-embedder",
        )
    actual = embedder_hash(model.y_embedder, dtype)
    if actual != wanted:
        raise FeaturesError(
            f"the features in {features.folder} were made with another caption embedder "
            f"({wanted[:12]}; that of this run's weights is {actual[:12]})",
            hint="start from the weights that encode was given (--ckpt-path), or encode with these",
        )
    model.y_embedder = ProjectedCaptions(model.y_embedder)
    # What comes in has the model's own width now.
    model.config = dataclasses.replace(model.config, caption_channels=model.config.hidden_size)
