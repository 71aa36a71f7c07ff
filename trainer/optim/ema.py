"""Exponential moving average of the weights, in fp32 and without a Python loop over elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


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
        present = dict(params)
        values = [present[name] for name in self._shadow]
        ramp = (1 + self.updates) / (10 + self.updates) if self.ramp else 1.0
        decay = min(self.decay, ramp)
        shadow = list(self._shadow.values())
        self.updates += 1
        if {value.dtype for value in values} == {torch.float32}:
            torch._foreach_lerp_(shadow, values, 1 - decay)
        else:  # without a copy of the model in fp32; the sum is made in fp32 all the same
            torch._foreach_mul_(shadow, decay)
            torch._foreach_add_(shadow, values, alpha=1 - decay)

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
