"""Exponential moving average of the weights, in fp32 and without a Python loop over elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from trainer.optim.norms import square_distance


class EMA:
    """Follows named tensors (whole or this rank's parts); `ramp`: first (1 + n) / (10 + n)."""

    def __init__(
        self, params: Iterable[tuple[str, Tensor]], decay: float, *, ramp: bool = True
    ) -> None:
        self.decay, self.ramp, self.updates = decay, ramp, 0
        # fp32: with decay 0.9999 an update is smaller than a bf16 step
        self._shadow = {name: value.detach().to(torch.float32, copy=True) for name, value in params}

    @torch.no_grad()
    def update(self, params: Iterable[tuple[str, Tensor]]) -> None:
        """Move towards the present weights, of any float dtype and the same names."""
        decay, shadow, values = self.next_decay, list(self._shadow.values()), self._like(params)
        self.updates += 1
        if {value.dtype for value in values} == {torch.float32}:
            torch._foreach_lerp_(shadow, values, 1 - decay)
        else:  # without a copy of the model in fp32; the sum is made in fp32 all the same
            torch._foreach_mul_(shadow, decay)
            torch._foreach_add_(shadow, values, alpha=1 - decay)

    @property
    def next_decay(self) -> float:
        """How much of its distance to the weights the next update leaves."""
        ramp = (1 + self.updates) / (10 + self.updates) if self.ramp else 1.0
        return min(self.decay, ramp)

    def square_distance(self, params: Iterable[tuple[str, Tensor]], device: torch.device) -> Tensor:
        """Sum of squares of weights minus average, fp64 on the device, without a copy of all."""
        return square_distance(self._like(params), list(self._shadow.values()), device)

    def _like(self, params: Iterable[tuple[str, Tensor]]) -> list[Tensor]:
        present = dict(params)
        return [present[name] for name in self._shadow]

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights under the model's names, fp32."""
        return dict(self._shadow)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Take over an average made by `updates`. Raises KeyError or ValueError for another's."""
        extra = sorted(state.keys() - self._shadow.keys())
        missing = sorted(self._shadow.keys() - state.keys())
        if extra or missing:
            what = f"{len(missing)} missing {missing[:2]}, {len(extra)} unknown {extra[:2]}"
            raise KeyError(f"this EMA is of another model: {what}")
        for name, value in self._shadow.items():
            got, want = tuple(state[name].shape), tuple(value.shape)
            if got != want:
                raise ValueError(f"EMA of {name} has shape {got}, the model {want}")
        torch._foreach_copy_(list(self._shadow.values()), [state[name] for name in self._shadow])
        self.updates = updates
