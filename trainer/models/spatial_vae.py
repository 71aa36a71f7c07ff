"""The VAE over single frames: diffusers' AutoencoderKL under upstream's names and scaling.

diffusers is imported when a VAE is built, not before: it takes 5 s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import ConfigError, OutOfMemory
from trainer.models.tiles import Room, Tiling, in_batches, tiled

# N images · C channels · H,W pixels
# Upstream keeps Stable Diffusion's factor although the published weights are SDXL's (0.13025).
FACTOR = 0.18215
# A tile below 32 latent pixels is mostly border; above, as large as fits.
LEAST_TILE, OVERLAP_SHARE = 32, 4


@dataclass(frozen=True, slots=True)
class SpatialSettings:
    """diffusers' sizes; the defaults are the SDXL VAE's (83,653,863 parameters)."""

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 4
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    layers_per_block: int = 2
    norm_num_groups: int = 32
    down_block_types: tuple[str, ...] = ("DownEncoderBlock2D",) * 4
    up_block_types: tuple[str, ...] = ("UpDecoderBlock2D",) * 4
    act_fn: str = "silu"
    sample_size: int = 1024  # not used: how large tiles are is decided by memory

    @property
    def factor(self) -> int:
        """Pixels of a latent pixel, along each edge."""
        return int(2 ** (len(self.block_out_channels) - 1))


class SpatialVAE(nn.Module):
    """Images to the moments of their latents, and back; all of them in as few calls as memory allows.

    Images that do not fit alone are cut into tiles (trainer.models.tiles). diffusers could tile too,
    but with a size fixed beforehand, up to the falsified border, and in Python loops over pixel rows.
    """

    def __init__(self, settings: SpatialSettings) -> None:
        super().__init__()
        try:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
        except ImportError as error:
            raise ConfigError(
                f"the video VAE needs diffusers, which cannot be imported: {error}",
                hint="pip install 'diffusers>=0.29'",
            ) from None
        self.settings = settings
        self.module: Any = AutoencoderKL(**asdict(settings))

    def moments(self, x_NCHW: Tensor, room: Room) -> Tensor:
        """Mean and log-variance of each image's latent, [N, 2 latent_channels, H//8, W//8]."""

        def network(x: Tensor) -> Tensor:
            return self.module.encode(x.to(dtype)).latent_dist.parameters

        dtype, factor = self._dtype, self.settings.factor
        # At full size a block holds its input, the normalised one and its result, plus the
        # convolution's own memory.
        pixel_bytes = 4 * self.settings.block_out_channels[0] * dtype.itemsize
        return self._over(network, x_NCHW, pixel_bytes, room, factor, 1)

    def decode(self, z_NCHW: Tensor, room: Room) -> Tensor:
        """[N, 3, 8 H, 8 W] in -1..1, about."""

        def network(z: Tensor) -> Tensor:
            return self.module.decode(z.to(dtype)).sample

        dtype, factor = self._dtype, self.settings.factor
        # The last stage's first block has the channels of the stage before it.
        pixel_bytes = 4 * self.settings.block_out_channels[1] * dtype.itemsize
        return self._over(network, z_NCHW, pixel_bytes * factor**2, room, 1, factor)

    @property
    def _dtype(self) -> torch.dtype:
        return self.module.encoder.conv_in.weight.dtype

    def _over(
        self,
        network: Any,
        x_NCHW: Tensor,
        pixel_bytes: int,
        room: Room,
        from_cell: int,
        to_cell: int,
    ) -> Tensor:
        image_bytes = pixel_bytes * x_NCHW.shape[2] * x_NCHW.shape[3]
        cells = [size // from_cell for size in x_NCHW.shape[2:]]
        while True:
            limit = room.bytes(x_NCHW.device)
            side = max(LEAST_TILE, int((limit / pixel_bytes) ** 0.5) // from_cell)
            is_whole = image_bytes <= limit or max(cells) <= side
            try:
                if is_whole:
                    return in_batches(network, x_NCHW, image_bytes, room)
                tiling = Tiling(side, side // OVERLAP_SHARE)
                over_tiles = partial(
                    tiled, network, tiling=tiling, from_cell=from_cell, to_cell=to_cell
                )
                return in_batches(over_tiles, x_NCHW, limit, room)
            except OutOfMemory:
                if max(cells) <= LEAST_TILE or side == LEAST_TILE:
                    raise
            room.halve(x_NCHW.device)


_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_ATTENTION = re.compile(r"(.*\.attentions\.\d+\.)(query|key|value|proj_attn)(\.\w+)")


def modern_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Attention under diffusers' present names: before 0.17 it was query, key, value, proj_attn."""
    renamed = {}
    for name, tensor in weights.items():
        if found := _ATTENTION.fullmatch(name):
            head, layer, tail = found.groups()
            name = f"{head}{_OLD_ATTENTION[layer]}{tail}"
            tensor = tensor.flatten(1) if tensor.ndim == 4 else tensor  # 1x1 convolutions once
        renamed[name] = tensor
    return renamed
