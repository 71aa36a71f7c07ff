"""Norm and clipping of many gradients in a few calls, without waiting for the device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.optim.norms import square_sum

_EPS = 1e-6  # torch's and ColossalAI's
_TOGETHER = 1 << 26  # elements: 256 MB for their copy in fp32


def at_most(norm: Tensor, limit: float | None) -> Tensor | None:
    """Whether a norm (fp64, no dimension) is at most `limit`, on its device: bool without a
    dimension, False for what is not a number. None where no limit is set."""
    return None if limit is None else norm <= limit


@dataclass
class _Pairs:
    """Sums in fp32 with gradients for them; a few launches for all, whatever their number."""

    sums: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def add(self) -> None:
        """Add all, and forget them."""
        sums, gradients = self.sums, self.gradients
        self.sums, self.gradients = [], []
        if sums and gradients[0].dtype != torch.float32:  # the fast way is for one dtype
            wide = [torch.empty_like(own) for own in sums]
            torch._foreach_copy_(wide, gradients)
            gradients = wide
        if sums:
            torch._foreach_add_(sums, gradients)


class LocalSums:
    """Whole gradients of a rank in fp32, of backward passes whose gradients no collective has seen.

    A pass outside of `taking` adds its own to them as soon as each is made: hooks behind this one
    see the whole sum.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._sums: dict[int, Tensor] = {}  # by the parameter's id
        self._takes = False
        # Weak: Python's collector does not see hooks, and the parameters would never be freed.
        complete = weakref.WeakMethod(self._complete)

        def call(parameter: Tensor) -> None:
            if (method := complete()) is not None:
                method(parameter)

        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(call)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Gradients of a backward pass in here go into the sums."""
        self._takes = True
        try:
            yield
        finally:
            self._takes = False
        self._take()

    @torch.no_grad()
    def _take(self) -> None:
        added, new, size = _Pairs(), _Pairs(), 0
        for parameter in self._parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            own = self._sums.get(id(parameter))
            to = new if own is None else added
            if own is None:
                own = self._sums[id(parameter)] = torch.empty_like(gradient, dtype=torch.float32)
            to.sums.append(own)
            to.gradients.append(gradient)
            size += gradient.numel()
            if size > _TOGETHER:
                added.add()
                size = 0
        added.add()
        if new.sums:
            torch._foreach_copy_(new.sums, new.gradients)

    @torch.no_grad()
    def _complete(self, parameter: Tensor) -> None:
        if self._takes or (own := self._sums.pop(id(parameter), None)) is None:
            return
        assert parameter.grad is not None
        torch.add(own, parameter.grad, out=parameter.grad)


@torch.no_grad()
def clip_in_place(
    gradients: Sequence[Tensor],
    limit: float,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    dtype: torch.dtype = torch.float32,
    of: Sequence[Tensor] | None = None,
) -> Tensor:
    """Clip to a norm of `limit` (0 does not clip); returns the norm before, fp64 on the device.

    `group` has the ranks that hold other parts (then collective). The norm is that `of` other
    tensors, the same gradients in another dtype, where they are given. The factor stays on the
    device: reading it would leave the device without work until the update is launched.
    """
    total = square_sum(gradients if of is None else of, device, dtype)
    if group is not None:
        dist.all_reduce(total, group=group)
    norm = total.sqrt()
    if gradients and limit:
        # times 1.0 where the norm is small enough
        factor = 1.0 / ((norm + _EPS) / limit).clamp(min=1.0)
        torch._foreach_mul_(list(gradients), factor.to(gradients[0].dtype))
    return norm
