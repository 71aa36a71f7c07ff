"""Which frames of a training clip are given: the model learns to continue, join and animate.

A mask is bool [T] over latent frames: True is made from noise and counts in the loss, False is
given (clean, at time 0, outside the loss). Kinds and their statistics are Open-Sora 1.2's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.errors import ConfigError, nearest

# B batch · T latent frames
Generator = torch.Generator | None

IDENTITY = "identity"
KINDS = (
    IDENTITY,
    "quarter_random",
    "quarter_head",
    "quarter_tail",
    "quarter_head_tail",
    "image_random",
    "image_head",
    "image_tail",
    "image_head_tail",
    "random",
    "intepolate",  # upstream's spelling; "interpolate" is taken too
)
_ALIASES = {"interpolate": "intepolate"}
_LONGEST_SHARE = 4  # quarter_* give up to T/4 frames
_RANDOM_SHARES = (0.1, 0.9)  # of given frames


def _integer(low: int, high: int, generator: Generator) -> int:
    """Uniform over low..high, both possible."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def draw_mask(kind: str, frames: int, generator: Generator = None) -> Tensor:
    """One mask, bool [frames] on the CPU; an image is never given (2 frames: both, as upstream)."""
    mask_T = torch.ones(frames, dtype=torch.bool)
    if frames == 1 or kind == IDENTITY:
        return mask_T
    if kind == "intepolate":
        mask_T[_integer(0, 1, generator) :: 2] = False
        return mask_T
    if kind == "random":
        low, high = _RANDOM_SHARES
        share = low + (high - low) * torch.rand((), generator=generator)
        mask_T &= torch.rand(frames, generator=generator) > share
        mask_T[-1] |= ~mask_T.any()
        return mask_T
    size, _, where = kind.partition("_")
    # At least one: upstream fails on clips of 2 and 3 frames, where T // 4 is 0.
    most = max(1, frames // _LONGEST_SHARE)
    count = 1 if size == "image" else _integer(1, most, generator)
    if where == "random":
        start = _integer(0, frames - count, generator)
        mask_T[start : start + count] = False
    if "head" in where:
        mask_T[:count] = False
    if "tail" in where:
        mask_T[-count:] = False
    return mask_T


@dataclass(frozen=True, slots=True)
class FrameMasks:
    """Shares of clips by kind; clips beyond their sum are wholly made from noise."""

    ratios: Mapping[str, float]

    def draw(self, batch: int, frames: int, generator: Generator = None) -> Tensor | None:
        """bool [batch, frames] on the CPU, or None when no frame of the batch is given.

        A function of `generator` alone (None: torch's own). None instead of a mask of only True
        spares the model its second set of modulations; ranks may differ in it, as no collective
        depends on it. A clip that would have no frame left to learn is wholly made from noise.
        """
        if not any(self.ratios.values()):
            return None
        mask_BT = torch.stack([self._clip(frames, generator) for _ in range(batch)])
        return None if bool(mask_BT.all()) else mask_BT

    def _clip(self, frames: int, generator: Generator) -> Tensor:
        rest = float(torch.rand((), generator=generator))
        for kind, ratio in self.ratios.items():
            if rest < ratio:
                mask_T = draw_mask(kind, frames, generator)
                return mask_T if bool(mask_T.any()) else torch.ones_like(mask_T)
            rest -= ratio
        return torch.ones(frames, dtype=torch.bool)


def build_masks(ratios: Mapping[str, float] | None) -> FrameMasks:
    """The masks of a config's `mask_ratios`; raises ConfigError for wrong kinds and shares."""
    known: dict[str, float] = {}
    for name, ratio in (ratios or {}).items():
        kind = _ALIASES.get(name, name)
        if kind not in KINDS:
            text = f"mask_ratios: there is no kind {name!r}; kinds are {', '.join(KINDS)}"
            raise ConfigError(text, hint=nearest(kind, KINDS))
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise ConfigError(f"mask_ratios: {name} must be between 0 and 1; not {ratio!r}")
        known[kind] = known.get(kind, 0.0) + ratio
    total = sum(known.values())
    if total > 1 + 1e-6:
        raise ConfigError(f"mask_ratios: the shares add up to {total:g}, more than 1")
    return FrameMasks({kind: ratio for kind, ratio in known.items() if kind != IDENTITY})
