"""The VAE along time, causal: zeros in front, four frames to one. Keys are Open-Sora 1.2's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

# B batch · C channels · T,H,W frames, height, width of spatial latents (Z: of temporal ones)


@dataclass(frozen=True, slots=True)
class TemporalSettings:
    """Sizes of the network; the defaults are the published one's (309,687,144 parameters)."""

    in_out_channels: int = 4  # of the spatial latents
    latent_embed_dim: int = 4
    embed_dim: int = 4  # of the latents given out
    filters: int = 128
    num_res_blocks: int = 4
    channel_multipliers: tuple[int, ...] = (1, 2, 2, 4)
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    num_groups: int = 32

    def __post_init__(self) -> None:
        stages, changes = len(self.channel_multipliers), len(self.temporal_downsample)
        if changes != stages - 1:
            raise ValueError(f"temporal_downsample needs {stages - 1} entries, not {changes}")

    @property
    def factor(self) -> int:
        """Frames of one latent frame."""
        return int(2 ** sum(self.temporal_downsample))

    @property
    def widths(self) -> list[int]:
        return [self.filters * multiplier for multiplier in self.channel_multipliers]


class CausalConv3d(nn.Module):
    """Zeros around each frame, and in front of the first one only; `stride` is along time."""

    def __init__(
        self, channels: int, out: int, kernel: int = 3, *, stride: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        # The frame's padding is the convolution's own: only time's needs a copy.
        self.front = kernel - stride
        padding = (0, kernel // 2, kernel // 2)
        self.conv = nn.Conv3d(channels, out, kernel, (stride, 1, 1), padding, bias=bias)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        return self.conv(F.pad(x_BCTHW, (0, 0, 0, 0, self.front, 0)) if self.front else x_BCTHW)


def _normed(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """SiLU of the normalised x; in its memory where nothing is to be differentiated."""
    return F.silu(norm(x), inplace=not torch.is_grad_enabled())


class ResBlock(nn.Module):
    def __init__(self, channels: int, out: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = CausalConv3d(channels, out, bias=False)
        self.norm2 = nn.GroupNorm(groups, out)
        self.conv2 = CausalConv3d(out, out, bias=False)
        self.conv3 = CausalConv3d(channels, out, 1, bias=False) if channels != out else None

    def forward(self, x: Tensor) -> Tensor:
        change = self.conv2(_normed(self.norm2, self.conv1(_normed(self.norm1, x))))
        return change.add_(x if self.conv3 is None else self.conv3(x))


def _res_blocks(channels: int, out: int, count: int, groups: int) -> nn.ModuleList:
    widths = [channels] + [out] * count
    return nn.ModuleList(ResBlock(widths[i], out, groups) for i in range(count))


class Encoder(nn.Module):
    def __init__(self, settings: TemporalSettings) -> None:
        super().__init__()
        widths, groups, count = settings.widths, settings.num_groups, settings.num_res_blocks
        self.conv_in = CausalConv3d(settings.in_out_channels, settings.filters, bias=False)
        stages = zip([settings.filters, *widths], widths, strict=False)
        self.block_res_blocks = nn.ModuleList(_res_blocks(i, o, count, groups) for i, o in stages)
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, width, stride=2) if halves else nn.Identity()
            for width, halves in zip(widths, settings.temporal_downsample, strict=False)
        )
        self.res_blocks = _res_blocks(widths[-1], widths[-1], count, groups)
        self.norm1 = nn.GroupNorm(groups, widths[-1])
        self.conv2 = CausalConv3d(widths[-1], 2 * settings.latent_embed_dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for i, blocks in enumerate(self.block_res_blocks):
            x = _through(blocks, x)
            if i < len(self.conv_blocks):
                x = self.conv_blocks[i](x)
        return self.conv2(_normed(self.norm1, _through(self.res_blocks, x)))


class Decoder(nn.Module):
    def __init__(self, settings: TemporalSettings) -> None:
        super().__init__()
        widths, groups, count = settings.widths, settings.num_groups, settings.num_res_blocks
        self.conv1 = CausalConv3d(settings.latent_embed_dim, widths[-1])
        self.res_blocks = _res_blocks(widths[-1], widths[-1], count, groups)
        stages = zip([*widths[1:], widths[-1]], widths, strict=True)
        self.block_res_blocks = nn.ModuleList(_res_blocks(i, o, count, groups) for i, o in stages)
        # conv_blocks.i stands between stage i+1 and stage i; its channels become frames.
        self.conv_blocks = nn.ModuleList(
            CausalConv3d(width, 2 * width) if doubles else nn.Identity()
            for width, doubles in zip(widths[1:], settings.temporal_downsample, strict=True)
        )
        self.norm1 = nn.GroupNorm(groups, widths[0])
        self.conv_out = CausalConv3d(widths[0], settings.in_out_channels)

    def forward(self, z: Tensor) -> Tensor:
        x = _through(self.res_blocks, self.conv1(z))
        for i in reversed(range(len(self.block_res_blocks))):
            x = _through(self.block_res_blocks[i], x)
            if i and not isinstance(self.conv_blocks[i - 1], nn.Identity):
                x = self.conv_blocks[i - 1](x)
                x = rearrange(x, "b (c two) t h w -> b c (t two) h w", two=2)
        return self.conv_out(_normed(self.norm1, x))


def _through(blocks: nn.Module, x: Tensor) -> Tensor:
    for block in blocks.children():
        x = block(x)
    return x


class TemporalVAE(nn.Module):
    """Both ways for one chunk of frames; no randomness."""

    def __init__(self, settings: TemporalSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = Encoder(settings)
        self.decoder = Decoder(settings)
        self.quant_conv = CausalConv3d(2 * settings.latent_embed_dim, 2 * settings.embed_dim, 1)
        self.post_quant_conv = CausalConv3d(settings.embed_dim, settings.latent_embed_dim, 1)

    def length(self, frames: int) -> int:
        return -(-frames // self.settings.factor)

    def moments(self, x_BCTHW: Tensor) -> Tensor:
        """Mean and log-variance, [B, 2 embed_dim, length(T), H, W]."""
        front = -x_BCTHW.shape[2] % self.settings.factor
        return self.quant_conv(self.encoder(F.pad(x_BCTHW, (0, 0, 0, 0, front, 0))))

    def decode(self, z_BCZHW: Tensor, frames: int) -> Tensor:
        """[B, in_out_channels, frames, H, W]; what the padding in front became is cut off."""
        front = -frames % self.settings.factor
        return self.decoder(self.post_quant_conv(z_BCZHW))[:, :, front:]

    def frame_bytes(self, frames: int, element_bytes: int) -> tuple[int, int]:
        """Peak memory of encoding and of decoding a chunk, per latent pixel of a frame. The widest
        stage at full length, five times: input, normalised, padded, result, workspace."""
        length = frames + -frames % self.settings.factor
        stages, halvings = self.settings.widths, self.settings.temporal_downsample
        lengths = [length // 2 ** sum(halvings[:i]) for i in range(len(stages))]
        entered = [max(pair) for pair in pairwise([*stages, 0])]  # by the stage before, in decoding
        encode = max(width * size for width, size in zip(stages, lengths, strict=True))
        decode = max(width * size for width, size in zip(entered, lengths, strict=True))
        return 5 * encode * element_bytes, 5 * decode * element_bytes
