"""How much arithmetic STDiT3 is: the one count that telemetry, the benchmark and MFU figures share.

Counted are matrix products, a multiply-add as 2, from shapes alone. Left out, as everyone does, is
what is linear in the tokens without a product: norms, modulation, softmax, rotation, activations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trainer.models.stdit_config import STDiT3Config

# B clips · T frames, S places of the token grid · N = T*S tokens of a clip · L text tokens
# D width
_FREQUENCIES = 256  # sinusoids that a timestep or frame rate enters as


@dataclass(frozen=True, slots=True)
class ForwardFlops:
    """One forward pass by part; a backward pass is twice as much."""

    embedders: int  # patches, timestep, frame rate, text
    spatial_block: int  # each of the `depth` spatial blocks
    temporal_block: int
    final_layer: int
    depth: int

    @property
    def total(self) -> int:
        blocks = self.depth * (self.spatial_block + self.temporal_block)
        return self.embedders + blocks + self.final_layer

    def recompute(self, blocks: Collection[int]) -> int:
        """Of blocks that gradient checkpointing runs again; even: spatial, odd: temporal."""
        return sum(self.temporal_block if index % 2 else self.spatial_block for index in blocks)


def flops_by_part(
    config: STDiT3Config, batch: int, latent_T: int, latent_H: int, latent_W: int, text_tokens: int
) -> ForwardFlops:
    """The parts of `forward_flops`, with the same arguments."""
    width = config.hidden_size
    pt, ph, pw = config.patch_size
    frames = -(-latent_T // pt)
    places = -(-latent_H // ph) * -(-latent_W // pw)
    tokens = batch * frames * places
    texts = batch * text_tokens

    scalar = _FREQUENCIES * width + width * width
    caption = 0 if config.skip_y_embedder else config.caption_channels * width + width * width
    embedders = (
        tokens * config.in_channels * pt * ph * pw * width
        + batch * (2 * scalar + 6 * width * width)  # timestep, frame rate, their modulation
        + texts * caption
    )
    # Per token: qkv 3, proj 1, text query 1, text proj 1 of width x width, and the MLP's two.
    linear = tokens * (6 * width * width + 2 * width * int(width * config.mlp_ratio))
    text = texts * 2 * width * width + 2 * tokens * text_tokens * width
    return ForwardFlops(
        embedders=2 * embedders,
        spatial_block=2 * (linear + text + 2 * tokens * places * width),
        temporal_block=2 * (linear + text + 2 * tokens * frames * width),
        final_layer=2 * tokens * width * pt * ph * pw * config.out_channels,
        depth=config.depth,
    )


def forward_flops(
    config: STDiT3Config, batch: int, latent_T: int, latent_H: int, latent_W: int, text_tokens: int
) -> int:
    """Operations of one forward pass over `batch` clips of that latent size. `text_tokens` are
    those of a caption that take part; a training step takes three times it. Left out (1 % for 144p
    images): timestep embedding of condition frames, a frozen caption embedder."""
    return flops_by_part(config, batch, latent_T, latent_H, latent_W, text_tokens).total
