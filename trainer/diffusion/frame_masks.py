"""Which frames of a training clip are given: the model learns to continue, join and animate.

A mask is bool [T] over latent frames: True is made from noise and counts in the loss, False is
given (clean, at time 0, outside the loss). Kinds and their statistics are Open-Sora 1.2's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.errors import ConfigError, nearest

# B batch · T latent frames
Generator = torch.Generator | None

IDENTITY = "identity"
_LONGEST_SHARE = 4  # quarter_* give up to T/4 frames
_RANDOM_SHARES = (0.1, 0.9)  # of given frames


def _integer(low: int, high: int, generator: Generator) -> int:
    """Uniform over low..high, both possible."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def _quarter(frames: int, generator: Generator) -> int:
    # At least one: upstream fails on clips of 2 and 3 frames, where T // 4 is 0.
    return _integer(1, max(1, frames // _LONGEST_SHARE), generator)


def _one(frames: int, generator: Generator) -> int:
    return 1


_Length = Callable[[int, Generator], int]
_Draw = Callable[[Tensor, Generator], None]  # sets the given frames of a mask to False


def _ends(length: _Length, *, head: bool = False, tail: bool = False) -> _Draw:
    def draw(mask_T: Tensor, generator: Generator) -> None:
        count = length(len(mask_T), generator)  # the same at both ends
        if head:
            mask_T[:count] = False
        if tail:
            mask_T[-count:] = False

    return draw


def _somewhere(length: _Length) -> _Draw:
    def draw(mask_T: Tensor, generator: Generator) -> None:
        count = length(len(mask_T), generator)
        start = _integer(0, len(mask_T) - count, generator)
        mask_T[start : start + count] = False

    return draw


def _every_second(mask_T: Tensor, generator: Generator) -> None:
    mask_T[_integer(0, 1, generator) :: 2] = False


def _scattered(mask_T: Tensor, generator: Generator) -> None:
    low, high = _RANDOM_SHARES
    share = low + (high - low) * torch.rand((), generator=generator)
    mask_T &= torch.rand(len(mask_T), generator=generator) > share
    mask_T[-1] |= ~mask_T.any()


_KINDS: dict[str, _Draw | None] = {
    IDENTITY: None,
    "quarter_random": _somewhere(_quarter),
    "quarter_head": _ends(_quarter, head=True),
    "quarter_tail": _ends(_quarter, tail=True),
    "quarter_head_tail": _ends(_quarter, head=True, tail=True),
    "image_random": _somewhere(_one),
    "image_head": _ends(_one, head=True),
    "image_tail": _ends(_one, tail=True),
    "image_head_tail": _ends(_one, head=True, tail=True),
    "random": _scattered,
    "intepolate": _every_second,  # upstream's spelling; "interpolate" is taken too
}
_ALIASES = {"interpolate": "intepolate"}
KINDS = tuple(_KINDS)


def draw_mask(kind: str, frames: int, generator: Generator = None) -> Tensor:
    """One mask, bool [frames] on the CPU; an image is never given (2 frames: both, as upstream)."""
    mask_T = torch.ones(frames, dtype=torch.bool)
    draw = _KINDS[kind]
    if draw is not None and frames > 1:
        draw(mask_T, generator)
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
        if kind not in _KINDS:
            text = f"mask_ratios: there is no kind {name!r}; kinds are {', '.join(KINDS)}"
            raise ConfigError(text, hint=nearest(kind, KINDS))
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
            raise ConfigError(f"mask_ratios: {name} must be between 0 and 1; not {ratio!r}")
        known[kind] = known.get(kind, 0.0) + ratio
    total = sum(known.values())
    if total > 1 + 1e-6:
        raise ConfigError(f"mask_ratios: the shares add up to {total:g}, more than 1")
    return FrameMasks({kind: ratio for kind, ratio in known.items() if kind != IDENTITY})
