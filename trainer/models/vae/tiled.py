"""Frames too large for memory: diffusers' image VAE layer by layer, each in strips of rows.

Tiles that go through the whole network see group norms and attention of the tile instead of the
frame, and results change by 5 to 27 % (in the tests). Here a layer is finished before the next one
begins. Strips overlap by the row that a convolution reaches beyond them, norms use the whole
frame's statistics: equal up to rounding. Memory holds half of what the undivided network does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# N images · C channels · H,W rows and columns at the layer's size
LEAST_ROWS = 8
Layer = Callable[[Tensor], Tensor]
Piece = Callable[[int, int], Tensor]  # the strip of a span of rows


@dataclass(frozen=True, slots=True)
class Strips:
    """Encoder and decoder of a diffusers AutoencoderKL; `module` lies on the computing device."""

    module: Any
    strip_bytes: int  # of a strip's inputs; the computation takes a few times as much
    store: torch.device  # where whole layers lie

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
                out = strip.new_empty(shape, device=self.store)
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
