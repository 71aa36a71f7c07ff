"""Norm and clipping of many gradients in a few calls, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.optim.norms import square_sum

_EPS = 1e-6  # torch's and ColossalAI's


def at_most(norm: Tensor, limit: float | None) -> Tensor | None:
    """Whether a norm (fp64, no dimension) is at most `limit`, on its device: bool without a
    dimension, False for what is not a number. None where no limit is set."""
    return None if limit is None else norm <= limit


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
