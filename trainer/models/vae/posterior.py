"""A normal distribution per latent value: what a VAE knows about a clip."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOGVAR_RANGE = (-30.0, 20.0)  # upstream's clamp


class Posterior(NamedTuple):
    """Mean and log-variance, fp32, of one shape; -inf is no spread."""

    mean: Tensor
    logvar: Tensor

    @classmethod
    def of(cls, moments: Tensor) -> Posterior:
        """From a network's output, mean and log-variance one after the other along dim 1."""
        # fp32: exp of a bf16 log-variance is wrong by 6 % at -15
        mean, logvar = moments.float().chunk(2, dim=1)
        return cls(mean, logvar.clamp(*LOGVAR_RANGE))

    def at(self, noise: Tensor) -> Tensor:
        """The value that a draw of standard noise stands for."""
        return torch.addcmul(self.mean, noise.to(self.mean), (0.5 * self.logvar).exp())

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.at(draw(self.mean, generator))

    def moved(self, by: Tensor) -> Posterior:
        return Posterior(self.mean + by, self.logvar)

    def scaled(self, by: float | Tensor) -> Posterior:
        """Of the value times `by`, which is positive."""
        spread = torch.as_tensor(by, dtype=torch.float32, device=self.mean.device)
        return Posterior(self.mean * by, self.logvar + 2 * spread.log())


def draw(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard noise, drawn where the generator lives (None: on the tensor's device)."""
    device = like.device if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, device=device).to(like.device)
