"""What the backward pass needs, kept or recomputed (auto | off | all | every 2 | 24000 MB).

`every n` recomputes each n-th pair of a spatial and a temporal block. A size keeps as many blocks
as fit into it, for each shape of a batch. `auto` keeps all, and passes as many clips at once as fit
on the card then (`trainer.fits`). Without torch: reading a config parses these words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.errors import ConfigError
from trainer.models.stdit_config import STDiT3Config

# B batch · T frames · S places of a frame · L text tokens · D width · N heads
Size = tuple[int, int, int]  # frames, rows, columns of latents
WITH_WEIGHTS = ("products", "math")  # kernels that keep a weight for every query and key
_MOST_PREPARED = 64  # frames, as attention/frames.py says, which imports torch
_UNITS = {"mb": 10**6, "gb": 10**9}
_DIGITS = 9
_EVERY = re.compile(rf"(?:every[ -]?)?([0-9]{{1,{_DIGITS}}})")
_SIZE = re.compile(rf"([0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{1,{_DIGITS}}})?) ?(mb|gb)")
_SHOWN = 40  # characters of a wrong value


@dataclass(frozen=True, slots=True)
class GradCheckpoint:
    """Which blocks run a second time in the backward pass."""

    every: int = 0  # pairs of blocks: 1 is all, n each n-th, 0 none
    budget_bytes: int | None = None  # for the blocks' activations; goes before `every`
    # Blocks that are recomputed in any case, for latents that would not fit (`trainer.fits`).
    at_least: Mapping[Size, int] = field(default_factory=dict)
    automatic: bool = False  # clips at once and `at_least` are chosen by what fits
    # Clips of a microbatch that pass at once, where it is not all of them.
    at_once: Mapping[Size, int] = field(default_factory=dict)

    def spans(self, batch: int, latent: Size) -> list[slice]:
        """Clips of a microbatch that pass at once, one span after another, as even as can be."""
        passes = -(-batch // self.at_once.get(latent, max(batch, 1))) or 1
        ends = [batch * number // passes for number in range(passes + 1)]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    @classmethod
    def parse(cls, value: GradCheckpoint | bool | int | str) -> GradCheckpoint:
        """From a config: False, True, n, or one of the words above. Raises ConfigError."""
        if isinstance(value, GradCheckpoint):
            return value
        if not isinstance(value, str):  # str() refuses a number of thousands of digits
            value = str(value) if abs(value) < 10**_DIGITS else f"more than {_DIGITS} digits"
        word = value.strip(" ").lower()
        if word in ("off", "false", "none", "0"):
            return cls()
        if word == "auto":
            return cls(automatic=True)
        if word in ("all", "true", "1"):
            return cls(every=1)
        if (match := _EVERY.fullmatch(word)) and int(match[1]):
            return cls(every=int(match[1]))
        if match := _SIZE.fullmatch(word):
            return cls(budget_bytes=int(float(match[1]) * _UNITS[match[2]]))
        known = "auto, off, all, 'every 2' or a size such as '24000 MB'"
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
        raise ConfigError(f"grad_checkpoint must be {known}; not {shown!r}")

    def require_pairs(self, depth: int) -> None:
        """Raises ConfigError where a model of `depth` pairs of blocks has no n-th one."""
        if self.every > depth:
            text = f"grad_checkpoint = {self.every} is every {self.every}th pair of blocks"
            hint = f"a size needs its unit, '{self.every} MB'; 'all' recomputes every block"
            raise ConfigError(f"{text}, and the model has {depth}", hint=hint)

    def blocks(self, depth: int, size: BlockBytes, latent: Size | None = None) -> frozenset[int]:
        """Those recomputed, in the order they run: even ones are spatial, odd ones temporal."""
        count = 2 * depth
        first = frozenset(range(self.at_least.get(latent, 0) if latent else 0))
        if self.budget_bytes is None:
            every = self.every
            return first | {i for i in range(count) if every and i // 2 % every == 0}
        held, recomputed = depth * (size.spatial + size.temporal), 0
        # The first ones: when the backward pass comes to them, the kept ones are free again.
        while held > self.budget_bytes and recomputed < count:
            held -= (size.temporal if recomputed % 2 else size.spatial) - size.entry
            recomputed += 1
        return first | frozenset(range(recomputed))


@dataclass(frozen=True, slots=True)
class Kernels:
    """What attends, as attention/table.py calls it; that decides what attention keeps."""

    spatial: str = "flash"
    temporal: str = "flash"
    text: str = "flash"
    fused: bool = False  # ours between a block's products (`models.block`)


_FLASH = Kernels()


@dataclass(frozen=True, slots=True)
class BlockBytes:
    spatial: int
    temporal: int
    entry: int  # when it is recomputed: its input


def block_bytes(
    config: STDiT3Config,
    batch: int,
    frames: int,
    places: int,
    text: int,
    itemsize: int,
    kernels: Kernels = _FLASH,
    modulations: int = 1,
) -> BlockBytes:
    """Counted over what the operations of a block save (a test measures it); weights left out.
    `frames` and `places` are of the token grid, `text` the tokens of a caption, `itemsize` bytes of
    a value, `modulations` those of a clip (`frames` with frame masks). Compiled: less."""
    tokens = batch * frames * places
    entry = tokens * config.hidden_size * itemsize
    # In widths per token: three inputs of branches, qkv 3, normed q and k 2, attention out 1, two
    # branches before their gates, text query and out 2, the inputs of the norms 2; the MLP's two.
    widths = 15 + 2 * config.mlp_ratio
    # fp32: mean and deviation of two norms, deviations of q and k
    statistics = tokens * 4 * (4 + 2 * config.num_heads * config.qk_norm)
    if kernels.fused:  # without what is made again: two normed inputs, the MLP's activation
        widths, statistics = 13 + config.mlp_ratio, 0
    captions = (2 * text + 6 * modulations) * batch * config.hidden_size * itemsize
    both = int(widths * entry) + statistics + captions

    def attention(kernel: str, keys: int) -> int:
        """Weights of the keys, log-sums in fp32, or nothing."""
        if kernel == "frames":
            return 0
        weights = keys * itemsize if kernel in WITH_WEIGHTS else 4
        return tokens * config.num_heads * weights

    cross = both + attention(kernels.text, text)
    spatial = cross + attention(kernels.spatial, places)
    temporal = cross + attention(kernels.temporal, frames)
    if kernels.fused and kernels.temporal == "frames" and frames <= _MOST_PREPARED:
        temporal -= 2 * entry  # norms and rotation happen in registers
    if kernels.temporal != "frames":
        # Frames stand side by side only after a copy of the values; unless normed, qkv then goes.
        temporal += entry - 3 * entry * (not config.qk_norm)
    return BlockBytes(spatial, temporal, entry)
