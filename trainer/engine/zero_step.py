"""The update of ColossalAI's ZeRO optimizer in a few calls, whatever the number of parameters.

Its own loops make about 10 launches for each parameter: 9,700 a step of 971 parameters (75 ms of a
2-core machine), and it reads the norm before it clips. The numbers here are the same bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.engine.gradients import at_most, clip_in_place
from trainer.engine.listed_adamw import ListedAdamW

_ALIGNED = 4  # elements: foreach kernels read 16 bytes at once where a tensor begins at such


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Parameters that are gathered together."""

    masters: list[Tensor]  # this rank's flat parts, fp32
    lengths: list[int]  # of them
    working: list[Tensor]  # whole ones in working precision, [world, length] with padding


class ZeroStep:
    """Updates the masters of a `LowLevelZeroOptimizer` and the weights that it computes with."""

    def __init__(self, optimizer: Any, clip: float) -> None:
        self._optimizer, self._clip = optimizer, clip
        self._adamw: ListedAdamW = optimizer.optim
        groups = range(optimizer.num_param_groups)
        self._working = [p for g in groups for p in optimizer._working_param_groups[g]]
        self._masters: list[Tensor] = [
            p for g in groups for p in optimizer._master_param_groups_of_current_rank[g]
        ]
        self._keys = [id(parameter) for parameter in self._working]
        (self._store,) = optimizer.pg_to_grad_store.values()  # one process group
        self._group = self._store.torch_pg
        self._world = dist.get_world_size(self._group)
        self._buckets = self._make_buckets(optimizer._reduce_bucket_size)

    def _make_buckets(self, limit: int) -> list[_Bucket]:
        """Parts of at most `limit` elements together, as ColossalAI gathers them."""
        padded_of = self._optimizer._working_param_to_padded_working_param
        buckets, size = [_Bucket([], [], [])], 0
        for parameter, master in zip(self._working, self._masters, strict=True):
            size += master.numel()
            if size > limit and buckets[-1].masters:
                buckets.append(_Bucket([], [], []))
                size = master.numel()
            buckets[-1].masters.append(master if self._world > 1 else master.view(1, -1))
            buckets[-1].lengths.append(master.numel())
            buckets[-1].working.append(padded_of[parameter].view(self._world, master.numel()))
        return buckets

    @torch.no_grad()
    def step(self, limit: float | None) -> Tensor:
        """Clip, update, spread (collective); returns the gradient norm before clipping, fp64. A
        norm that is not at most `limit` changes nothing."""
        masters, gradients = self._gradients()
        whole = self._in_fp32(gradients)
        device, fp64 = self._masters[0].device, torch.float64  # as ColossalAI sums
        norm = clip_in_place(whole, self._clip, device, self._group, fp64, of=gradients)
        self._adamw.update(masters, whole, at_most(norm, limit))
        self._spread()
        return norm

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Masters that have gradients, and these: of this rank's parts, averaged over ranks."""
        masters, gradients = [], []
        index = self._store._working_index
        found = {k: v for group in self._store._grads_of_params.values() for k, v in group.items()}
        for master, key in zip(self._masters, self._keys, strict=True):
            if parts := found.get(key):
                masters.append(master)
                gradients.append(parts[index])
        return masters, gradients

    @staticmethod
    def _in_fp32(gradients: list[Tensor]) -> list[Tensor]:
        """The dtype of masters; those that are in it already stay where they are."""
        if all(gradient.dtype == torch.float32 for gradient in gradients):
            return gradients
        lengths = [gradient.numel() for gradient in gradients]
        steps = [-(-length // _ALIGNED) * _ALIGNED for length in lengths]
        flat = torch.empty(sum(steps), dtype=torch.float32, device=gradients[0].device)
        places = [
            place if step == length else place[:length]
            for place, step, length in zip(flat.split(steps), steps, lengths, strict=True)
        ]
        torch._foreach_copy_(places, gradients)
        return places

    def _spread(self) -> None:
        """The masters, rounded, into every rank's weights."""
        for bucket in self._buckets:
            if self._world == 1:
                torch._foreach_copy_(bucket.working, bucket.masters)
                continue
            total, like = sum(bucket.lengths), bucket.working[0]
            mine = like.new_empty(total)
            torch._foreach_copy_(list(mine.split(bucket.lengths)), bucket.masters)
            every = like.new_empty(self._world * total)
            dist.all_gather_into_tensor(every, mine, group=self._group)
            # one kernel on a GPU; FSDP2 takes its parameters out of a gathered buffer with it
            columns = every.view(self._world, total)
            torch.split_with_sizes_copy(columns, bucket.lengths, dim=1, out=bucket.working)
