"""Bytes that elementwise kernels and reductions read and write: each tensor once a launch.

Of torch's operations all but products, attention and views; of Triton's kernels the tensors that a
launch is given, and once more what they write over what they read. Reads from a cache count as from
memory, padding of rows does not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_FREE = (
    "empty",
    "new_empty",
    "detach",
    "alias",
    "_unsafe_view",
    "_flash_attention",
    "_varlen_attn",
    "_efficient_attention",
)
# Our kernels that do, and the constant by which they do.
_IN_PLACE = {
    "_gelu_backward": ("d_ptr", "WIDTH"),
    "_gelu_backward_scaled": ("d_ptr", "WIDTH"),
    "_add_gated_backward": ("d_out_ptr", "ADDS"),
}


class Traffic(TorchDispatchMode):
    """Counts while it is on: `bytes` by kernel or operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __enter__(self) -> Any:
        from triton.runtime import JITFunction

        self._run = JITFunction.run
        of_all = self

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            name = getattr(kernel.fn, "__name__", str(kernel.fn))
            of_all.bytes[name] += _size((args, kwargs))
            if name in _IN_PLACE:
                given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
                pointer, condition = _IN_PLACE[name]
                of_all.bytes[name] += _size(given[pointer]) if given[condition] else 0
            return of_all._run(kernel, *args, **kwargs)

        JITFunction.run = run
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        from triton.runtime import JITFunction

        JITFunction.run = self._run
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        free = func.is_view or name.startswith(_FREE) or func.overloadpacket in flop_registry
        if not free:
            self.bytes[name] += _size((args, kwargs, out))
        return out

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def _size(tree: Any) -> int:
    """Of tensors on a card, each once."""
    found: dict[tuple[int, int], int] = {}
    for tensor in tree_leaves(tree):
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            size = tensor.numel() * tensor.element_size()
            if 0 in tensor.stride():  # of what is expanded only what there is
                size = tensor.untyped_storage().nbytes()
            found[tensor.data_ptr(), size] = size
    return sum(found.values())
