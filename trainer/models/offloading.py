"""Activations that wait for the backward pass in host memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def to_host(weights: Iterable[Tensor], at_least_bytes: int = 1 << 20) -> saved_tensors_hooks:
    """A context whose saved activations wait in host memory, without waiting for the copies.
    Weights and tensors under `at_least_bytes` stay (weights gathered for one block move along)."""
    # Hooks get tensors detached and transposed; the storage tells weights from activations.
    kept = {_address(weight) for weight in weights}

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        small = tensor.nelement() * tensor.element_size() < at_least_bytes
        if small or _address(tensor) in kept:
            return tensor
        pinned = tensor.device.type == "cuda"
        host = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        host.copy_(tensor, non_blocking=pinned)
        return tensor.device, host

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        return host.to(device, non_blocking=True)

    return saved_tensors_hooks(pack, unpack)


def _address(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a sharded weight has no storage of its own
        return None
