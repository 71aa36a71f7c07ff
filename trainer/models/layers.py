"""The parts of STDiT3. Names and shapes of parameters are Open-Sora 1.2's: its weights load.

Every attention is a call of attention/calls.py, which chooses the kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from trainer.errors import ModelInputError
from trainer.models.attention import calls
from trainer.models.attention.calls import Packed
from trainer.models.attention.table import Table
from trainer.models.fused import Rotation, gelu_tanh, split_heads
from trainer.models.positions import sinusoid

# B batch · A any batch of sequences · T frames · S tokens of a frame · L text tokens
# D model width · N heads · E width of a head · C channels


class HeadNorm(nn.Module):
    """The weight of an RMS norm over one head; `split_heads` applies it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class SelfAttention(nn.Module):
    """Attention within each sequence; with `rotation`, positions enter after the norms."""

    def __init__(self, width: int, heads: int, qk_norm: bool) -> None:
        super().__init__()
        self.heads, self.qk_norm, self.table = heads, qk_norm, Table()
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm: nn.Module = HeadNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = HeadNorm(width // heads) if qk_norm else nn.Identity()
        self.proj = nn.Linear(width, width)

    def forward(
        self, x_BTSD: Tensor, across_frames: bool, rotation: Rotation | None = None
    ) -> Tensor:
        """Over the tokens of each frame, or `across_frames` over the frames of each place."""
        parts = split_heads(self.qkv(x_BTSD), self.heads, self.norms(), rotation, across_frames)
        attend = calls.across_frames if across_frames else calls.within_frames
        return self.proj(attend(*parts, self.table).flatten(-2))

    def norms(self) -> tuple[Tensor, Tensor] | None:
        """Weights of the RMS norms of queries and keys."""
        if not self.qk_norm:
            return None
        return self.q_norm.get_parameter("weight"), self.k_norm.get_parameter("weight")


class CrossAttention(nn.Module):
    """Every token of a clip looks at its caption."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.table = heads, Table()
        self.q_linear = nn.Linear(width, width)
        self.kv_linear = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BTSD: Tensor, y: Tensor, real: Tensor | Packed | None) -> Tensor:
        """`y` [B, L, D] with the mask [B, L] (bool) of its real tokens, or packed, [B L, D]."""
        return self.proj(self.attended(self.q_linear(x_BTSD), y, real))

    def attended(self, q_BTSD: Tensor, y: Tensor, real: Tensor | Packed | None) -> Tensor:
        """What queries find in the captions, [B, T, S, D], before the last product."""
        frames = q_BTSD.shape[1]
        if isinstance(real, Packed):
            q = q_BTSD.flatten(1, 2).unflatten(-1, (self.heads, -1))
            kv = self.kv_linear(y).unflatten(-1, (2, self.heads, -1))
            out = calls.to_packed_text(q, kv, real)
            return rearrange(out, "b (t s) n e -> b t s (n e)", t=frames)
        q = rearrange(q_BTSD, "b t s (n e) -> b n (t s) e", n=self.heads)
        k, v = rearrange(self.kv_linear(y), "b l (k n e) -> k b n l e", k=2, n=self.heads)
        out = calls.attend(q, k, v, real, self.table.choose("text", k.shape[-2]))
        return rearrange(out, "b n (t s) e -> b t s (n e)", t=frames)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(gelu_tanh(self.fc1(x)))


class ScalarEmbedder(nn.Module):
    """A number per sample (timestep, frames per second) as a vector of the model's width."""

    FREQUENCIES = 256

    def __init__(self, width: int) -> None:
        super().__init__()
        first = nn.Linear(self.FREQUENCIES, width)
        self.mlp = nn.Sequential(first, nn.SiLU(), nn.Linear(width, width))

    def forward(self, values_B: Tensor) -> Tensor:
        dtype = self.get_parameter("mlp.0.weight").dtype
        return self.mlp(sinusoid(values_B, self.FREQUENCIES).to(dtype))


class CaptionEmbedder(nn.Module):
    """Text features to the model's width; training drops some captions for the null text."""

    y_embedding: Tensor

    def __init__(self, channels: int, width: int, drop_probability: float, length: int) -> None:
        super().__init__()
        self.y_proj = Mlp(channels, width, width)
        self.register_buffer("y_embedding", torch.randn(length, channels) / channels**0.5)
        self.drop_probability = drop_probability

    def forward(self, y_B1LC: Tensor, columns: Tensor | None = None) -> Tensor:
        """[B, 1, L, D]. Drops only in training, by one draw per sample on the CPU. A dropped
        caption keeps its own text mask, as upstream: the caller's mask stays valid. `columns`
        (long) are the tokens wanted, default all; the others are not projected. Raises
        ModelInputError when captions are dropped and L differs from the null text's length."""
        if self.training and self.drop_probability > 0:
            shape, null_shape = tuple(y_B1LC.shape[2:]), tuple(self.y_embedding.shape)
            if shape != null_shape:
                text = f"text features are {shape} per caption but the null text is {null_shape}"
                raise ModelInputError(f"{text}; encode with max_length {null_shape[0]}")
            draws = torch.rand(y_B1LC.shape[0])
            # not blocking, as below: the host would wait for all that is launched
            dropped = (draws < self.drop_probability).to(y_B1LC.device, non_blocking=True)
            null = self.y_embedding.to(y_B1LC.dtype)
            y_B1LC = torch.where(dropped[:, None, None, None], null, y_B1LC)
        if columns is not None:
            y_B1LC = y_B1LC[:, :, columns.to(y_B1LC.device, non_blocking=True)]
        return self.y_proj(y_B1LC)


class PatchEmbed(nn.Module):
    """Latent, zero-padded to whole patches, to tokens: the convolution as one matrix product."""

    def __init__(self, patch: tuple[int, int, int], channels: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        # Holds the parameters under upstream's name and shape.
        self.proj = nn.Conv3d(channels, width, kernel_size=patch, stride=patch)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        """[B, T/pt, (H/ph)(W/pw), D], rounded up."""
        t, h, w = self.patch
        short = [-size % p for size, p in zip(x_BCTHW.shape[2:], self.patch, strict=True)]
        if any(short):
            x_BCTHW = F.pad(x_BCTHW, (0, short[2], 0, short[1], 0, short[0]))
        patches = rearrange(x_BCTHW, "b c (t p) (h q) (w r) -> b t (h w) (c p q r)", p=t, q=h, r=w)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)
