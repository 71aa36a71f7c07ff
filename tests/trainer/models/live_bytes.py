"""Bytes of the tensors that are alive while something runs, counted operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`peak` is the most at once of what operations made under it and of what was `held` before.

    Works on torch's meta device, too. What a kernel takes for itself while it runs is not seen.
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, Any] = {}
        for tensor in held:
            self._add(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return out

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known[key] = weakref.finalize(storage, self._remove, key, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _remove(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size
