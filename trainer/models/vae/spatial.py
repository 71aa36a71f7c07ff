"""The VAE over frames: diffusers' AutoencoderKL, imported late (5 s), with upstream's names.

Frames too large for memory go through it layer by layer, each in strips of rows. Tiles that go
through the whole network see group norms and attention of the tile instead of the frame, and
results change by 5 to 27 % (in the tests). Here a layer is finished before the next one begins.
Strips overlap by the row that a convolution reaches beyond them, norms use the whole frame's
statistics: equal up to rounding. Memory holds half of what the undivided network does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.errors import ConfigError, OutOfMemory
from trainer.models.attention.calls import without_plans
from trainer.models.memory import MemoryBudget, Network, in_batches

# N images · C channels · H,W pixels, in Strips rows and columns at the layer's size
# Upstream keeps Stable Diffusion's factor although the published weights are SDXL's (0.13025).
FACTOR = 0.18215
# Measured (fp32, 384 x 384): encoding 5.0 and decoding 4.0 layers at full size, in strips 3.0, 2.6.
LAYERS_AT_ONCE, LAYERS_IN_STRIPS = 5, 3
STRIPS_OF_BUDGET = 16
LEAST_BYTES = 1 << 26  # strips are as narrow as they get
LEAST_ROWS = 8
Layer = Callable[[Tensor], Tensor]
Piece = Callable[[int, int], Tensor]  # the strip of a span of rows


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


@dataclass(frozen=True, slots=True)
class Strips:
    """Encoder and decoder of a diffusers AutoencoderKL; `module` lies on the computing device."""

    module: Any
    strip_bytes: int  # of a strip's inputs; the computation takes a few times as much
    store: torch.device  # where whole layers lie
    form: torch.memory_format = torch.contiguous_format  # in which order of their axes

    def moments(self, x_NCHW: Tensor) -> Tensor:
        """What `module.encode` gives as parameters."""
        net = self.module.encoder
        h = self._conv(x_NCHW.to(self.store), net.conv_in)
        for block in net.down_blocks:
            for resnet in block.resnets:
                h = self._resnet(h, resnet)
            for layer in block.downsamplers or ():
                h = self._downsample(h, layer.conv)
        h = net.mid_block(self._whole(h)).to(self.store)
        h = self._conv(h, net.conv_out, self._norm(h, net.conv_norm_out, net.conv_act))
        quant = self.module.quant_conv
        return self._whole(h) if quant is None else quant(self._whole(h))

    def decode(self, z_NCHW: Tensor) -> Tensor:
        """What `module.decode` gives as sample."""
        net, quant = self.module.decoder, self.module.post_quant_conv
        z = self._whole(z_NCHW)
        h = self._conv((z if quant is None else quant(z)).to(self.store), net.conv_in)
        h = net.mid_block(self._whole(h)).to(self.store)
        for block in net.up_blocks:
            for resnet in block.resnets:
                h = self._resnet(h, resnet)
            for layer in block.upsamplers or ():
                h = self._upsample(h, layer.conv)
        h = self._conv(h, net.conv_out, self._norm(h, net.conv_norm_out, net.conv_act))
        return self._whole(h)

    def _whole(self, x: Tensor) -> Tensor:
        return x.to(self.module.encoder.conv_in.weight)

    @property
    def _device(self) -> torch.device:
        return self.module.encoder.conv_in.weight.device

    def _spans(self, x: Tensor, rows: int) -> Iterator[tuple[int, int]]:
        """Rows [a, b) of an output of `rows` rows, an even number each (but the last)."""
        row_bytes = x[:, :, 0].numel() * x.element_size()
        step = max(LEAST_ROWS, self.strip_bytes // row_bytes // 2 * 2)
        for start in range(0, rows, step):
            yield start, min(rows, start + step)

    def _resnet(self, x: Tensor, block: Any) -> Tensor:
        h = self._conv(x, block.conv1, self._norm(x, block.norm1, block.nonlinearity))
        # Over the input where the shapes allow: a strip reads only its own rows of it.
        out = None if block.conv_shortcut is not None else x
        between = self._norm(h, block.norm2, block.nonlinearity)
        return self._conv(h, block.conv2, between, added=(x, block.conv_shortcut), out=out)

    def _conv(
        self,
        x: Tensor,
        conv: nn.Conv2d,
        before: Layer | None = None,
        added: tuple[Tensor, nn.Module | None] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """conv(before(x)) for 3x3 kernels, plus what a block adds; into `out` if given."""
        height = x.shape[2]

        def piece(a: int, b: int) -> Tensor:
            low, high = max(0, a - 1), min(height, b + 1)
            strip = self._whole(x[:, :, low:high])
            if before is not None:
                strip = before(strip)
            strip = F.pad(strip, (0, 0, low - (a - 1), b + 1 - high))
            strip = F.conv2d(strip, conv.weight, conv.bias, padding=(0, 1))
            if added is not None:
                other, shortcut = added
                rows = self._whole(other[:, :, a:b])
                strip = strip + (rows if shortcut is None else shortcut(rows))
            return strip

        return self._joined(piece, x, height, out=out)

    def _downsample(self, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """Every second pixel, padded right and below."""
        height = x.shape[2]

        def piece(a: int, b: int) -> Tensor:
            high = min(height, 2 * b + 1)
            strip = F.pad(self._whole(x[:, :, 2 * a : high]), (0, 1, 0, 2 * b + 1 - high))
            return F.conv2d(strip, conv.weight, conv.bias, stride=2)

        return self._joined(piece, x, height // 2)

    def _upsample(self, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """Each pixel four times, then the convolution."""
        height = x.shape[2]

        def piece(a: int, b: int) -> Tensor:  # input rows; output rows 2a to 2b
            low, high = max(0, a - 1), min(height, b + 1)
            strip = F.interpolate(self._whole(x[:, :, low:high]), scale_factor=2.0, mode="nearest")
            first, last = 2 * (a - low) - 1, 2 * (b - low) + 1  # of the enlarged rows
            above, below = max(0, -first), max(0, last - strip.shape[2])
            strip = F.pad(strip[:, :, max(0, first) : last], (0, 0, above, below))
            return F.conv2d(strip, conv.weight, conv.bias, padding=(0, 1))

        return self._joined(piece, x, height, times=2)

    def _joined(
        self, piece: Piece, x: Tensor, rows: int, times: int = 1, out: Tensor | None = None
    ) -> Tensor:
        """The strips of all spans of `rows`, each `times` as high, in `out` or new memory."""
        for a, b in self._spans(x, rows):
            strip = piece(a, b)
            if out is None:
                shape = (*strip.shape[:2], times * rows, strip.shape[3])
                out = torch.empty(
                    shape, dtype=strip.dtype, device=self.store, memory_format=self.form
                )
            out[:, :, times * a : times * b] = strip
        assert out is not None
        return out

    def _norm(self, x: Tensor, norm: nn.GroupNorm, activation: Layer) -> Layer:
        """Group norm with the statistics of all of x, then the activation, for any strip."""
        groups = norm.num_groups
        counts, means, variances = [], [], []
        for a, b in self._spans(x, x.shape[2]):
            # fp32, as group norm itself computes
            strip = x[:, :, a:b].to(self._device, torch.float32).flatten(2)
            values = strip.reshape(len(strip), groups, -1)
            variance, mean = torch.var_mean(values, dim=2, correction=0)
            counts.append(values.shape[2])
            means.append(mean.double())  # differences of means of strips are small
            variances.append(variance.double())
        share = torch.tensor(counts, dtype=torch.float64, device=self._device)[:, None, None]
        share = share / share.sum()
        all_means, all_variances = torch.stack(means), torch.stack(variances)
        mean_NG = (share * all_means).sum(0)
        variance_NG = (share * (all_variances + (all_means - mean_NG).square())).sum(0)
        per_channel = x.shape[1] // groups
        spread = (variance_NG + norm.eps).rsqrt().repeat_interleave(per_channel, 1)
        scale = spread * norm.weight.double()
        shift = norm.bias.double() - mean_NG.repeat_interleave(per_channel, 1) * scale
        scale, shift = scale.float()[:, :, None, None], shift.float()[:, :, None, None]

        def apply(strip: Tensor) -> Tensor:
            return activation(torch.addcmul(shift, strip.float(), scale).to(strip.dtype))

        return apply


class SpatialVAE(nn.Module):
    """Images to moments of latents and back, many at once, or one in strips.

    On an accelerator weights and images lie channels last, as its convolutions read them: cuDNN
    otherwise turns bf16 images around before and after each. `channels_last` forces it or forbids
    it. The same numbers up to rounding. (The VAE over frames stays as it is: nothing was measured.)
    """

    channels_last: bool | None = None  # None: on an accelerator

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
        form = self._layout(device)
        layer_bytes, each = layer * dtype.itemsize, LAYERS_AT_ONCE * layer * dtype.itemsize
        with without_plans(device):
            if each <= budget.bytes(device):
                try:
                    whole = partial(torch.Tensor.to, dtype=dtype, memory_format=form)
                    return in_batches(lambda x: network(whole(x)), x_NCHW, each, budget)
                except OutOfMemory:
                    pass  # one image alone was too much, and `budget` is half of that now
            while True:
                limit = budget.bytes(device)
                store = device if LAYERS_IN_STRIPS * layer_bytes <= limit else torch.device("cpu")
                strips = Strips(self.module, limit // STRIPS_OF_BUDGET, store, form)
                try:
                    return in_batches(partial(in_strips, strips), x_NCHW, limit, budget)
                except OutOfMemory:  # `budget` is half of what it was: narrower strips, on the host
                    if limit < LEAST_BYTES:
                        raise

    def _layout(self, device: torch.device) -> torch.memory_format:
        """How images lie there; the weights are laid out alike, once."""
        last = device.type == "cuda" if self.channels_last is None else self.channels_last
        form = torch.channels_last if last else torch.contiguous_format
        if not self.module.encoder.conv_in.weight.is_contiguous(memory_format=form):
            self.module.to(memory_format=form)
        return form


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
