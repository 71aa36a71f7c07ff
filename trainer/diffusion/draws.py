"""The random numbers of a microbatch: which frames are given, times, noise, and stochastic depth.

They depend on the run's seed and the microbatch alone, so that a run has no state of them to save,
and are drawn on the CPU: the same on every device and on any number of ranks. Noise takes a CPU
15 ms for 8 clips of 360p:51; that of the next microbatch is drawn while a GPU computes this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.diffusion.frame_masks import FrameMasks
from trainer.diffusion.rectified_flow import RectifiedFlow

# B batch · C channels · T,H,W latent frames, height, width
Place = tuple[int, int]  # epoch, index of a microbatch


class Draws(NamedTuple):
    """All on the host."""

    mask_BT: Tensor | None  # bool, False: given; None when no frame is given
    t_B: Tensor  # before the transform
    noise_BCTHW: Tensor  # fp32
    state: Tensor  # of torch's generator behind these draws: the model's own come next


class Given(NamedTuple):
    """What `RectifiedFlow.training_losses` takes, on the device."""

    mask: Tensor | None
    t: Tensor
    noise: Tensor
    kept: Tensor | None = None  # of `STDiT3.draw_kept`, on the host

    def of(self, clips: slice) -> Given:
        """Those of some clips."""
        mask, kept = (None if part is None else part[clips] for part in (self.mask, self.kept))
        return Given(mask, self.t[clips], self.noise[clips], kept)


@dataclass
class Drawing:
    """Draws for one microbatch after another."""

    seed: int
    flow: RectifiedFlow
    masks: FrameMasks
    device: torch.device
    draw_kept: Callable[[int, torch.Generator], Tensor | None]
    _ahead: tuple[Place, Draws] | None = None

    def seed_for_encoding(self, place: Place) -> None:
        """Apart from the other draws: these are the same with a feature cache."""
        torch.manual_seed(seed_of(self.seed, *place, 1))

    def ahead(self, place: Place, shape: tuple[int, ...]) -> None:
        """Draw for a microbatch to come with latents of `shape` [B, C, T, H, W]; on a GPU only."""
        if self.device.type == "cuda":
            self._ahead = place, self._draw(place, shape, pin=True)

    def take(self, place: Place, z_BCTHW: Tensor, sizes: Mapping[str, Any]) -> Given:
        """Draws for these latents. torch's own generators stand behind them afterwards."""
        before, self._ahead = self._ahead, None
        if before is not None and (before[0], before[1][2].shape) == (place, z_BCTHW.shape):
            draws = before[1]
        else:
            draws = self._draw(place, z_BCTHW.shape)
        torch.manual_seed(seed_of(self.seed, *place))
        torch.set_rng_state(draws.state)
        mask_BT = None if draws.mask_BT is None else self._moved(draws.mask_BT)
        t_B = self.flow.transform(self._moved(draws.t_B), z_BCTHW, sizes)
        # Apart from the other draws: these are the same without stochastic depth.
        generator = torch.Generator().manual_seed(seed_of(self.seed, *place, 2))
        kept_BN2 = self.draw_kept(len(z_BCTHW), generator)
        return Given(mask_BT, t_B, self._moved(draws.noise_BCTHW).to(z_BCTHW), kept_BN2)

    def _draw(self, place: Place, shape: tuple[int, ...], *, pin: bool = False) -> Draws:
        generator = torch.Generator().manual_seed(seed_of(self.seed, *place))
        mask_BT = self.masks.draw(shape[0], shape[2], generator)
        t_B = self.flow.sample_timesteps(shape[0], generator)
        noise_BCTHW = torch.empty(shape, pin_memory=pin).normal_(generator=generator)
        return Draws(mask_BT, t_B, noise_BCTHW, generator.get_state())

    def _moved(self, values: Tensor) -> Tensor:
        # not blocking: the host would wait until the device has encoded
        return values.to(self.device, non_blocking=True)


def seed_of(*numbers: int) -> int:
    """A seed for torch's generators that these numbers alone decide."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
