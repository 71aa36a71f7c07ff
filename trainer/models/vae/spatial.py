"""The VAE over frames: diffusers' AutoencoderKL, imported late (5 s), with upstream's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import ConfigError, OutOfMemory
from trainer.models.memory import MemoryBudget, Network, in_batches
from trainer.models.vae.tiled import Strips

# N images · C channels · H,W pixels
# Upstream keeps Stable Diffusion's factor although the published weights are SDXL's (0.13025).
FACTOR = 0.18215
# Measured (fp32, 384 x 384): encoding 5.0 and decoding 4.0 layers at full size, in strips 3.0, 2.6.
LAYERS_AT_ONCE, LAYERS_IN_STRIPS = 5, 3
STRIPS_OF_BUDGET = 16
LEAST_BYTES = 1 << 26  # strips are as narrow as they get


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
    """Images to moments of latents and back, many at once, or one in strips (vae.tiled)."""

    def __init__(self, settings: SpatialSettings) -> None:
        super().__init__()
        try:
            from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
        except ImportError as error:
            text = f"the video VAE needs diffusers, which cannot be imported: {error}"
            raise ConfigError(text, hint="pip install 'diffusers>=0.29'") from None
        self.settings = settings
        self.module: Any = AutoencoderKL(**asdict(settings))

    def moments(self, x_NCHW: Tensor, budget: MemoryBudget) -> Tensor:
        """Mean and log-variance of each image's latent, [N, 2 latent_channels, H//8, W//8]."""
        # At full size a block holds its input, the normalised one, its result and workspace.
        layer = self.settings.block_out_channels[0] * x_NCHW[0, 0].numel()

        def network(x: Tensor) -> Tensor:
            return self.module.encode(x).latent_dist.parameters

        return self._over(network, Strips.moments, x_NCHW, layer, budget)

    def decode(self, z_NCHW: Tensor, budget: MemoryBudget) -> Tensor:
        """[N, 3, 8 H, 8 W] in -1..1, about."""
        # The last stage's first block has the channels of the stage before it.
        pixels = z_NCHW[0, 0].numel() * self.settings.factor**2
        layer = self.settings.block_out_channels[1] * pixels
        return self._over(
            lambda z: self.module.decode(z).sample, Strips.decode, z_NCHW, layer, budget
        )

    def _over(
        self,
        network: Network,
        in_strips: Callable[[Strips, Tensor], Tensor],
        x_NCHW: Tensor,
        layer: int,
        budget: MemoryBudget,
    ) -> Tensor:
        """Through all at once or in strips; `layer` values of an image are at full size."""
        dtype, device = self.module.encoder.conv_in.weight.dtype, x_NCHW.device
        layer_bytes, each = layer * dtype.itemsize, LAYERS_AT_ONCE * layer * dtype.itemsize
        if each <= budget.bytes(device):
            try:
                return in_batches(lambda x: network(x.to(dtype)), x_NCHW, each, budget)
            except OutOfMemory:
                pass  # one image alone was too much, and `budget` is half of that now
        while True:
            limit = budget.bytes(device)
            store = device if LAYERS_IN_STRIPS * layer_bytes <= limit else torch.device("cpu")
            strips = Strips(self.module, limit // STRIPS_OF_BUDGET, store)
            try:
                return in_batches(partial(in_strips, strips), x_NCHW, limit, budget)
            except OutOfMemory:  # `budget` is half of what it was: narrower strips, on the host
                if limit < LEAST_BYTES:
                    raise


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
