"""Activations that wait for the backward pass in host memory, copied beside the computation.

A block's activations go out on a second stream while the next block computes; two blocks later
their device memory is free. In the backward pass those of the block before come back while one
computes; it begins with the last two, which stay. Pinned memory is kept from step to step and cut
from slabs: torch rounds each pinned tensor up to a power of two.

Of blocks that are recomputed only the inputs go. XL/2 at 360p with 51 frames x 8 in bf16 has 0.25
GB of these a block, 13.7 GB of 54 blocks. Kept whole, a block has 5.9 GB: 318 GB out and 318 back,
6.4 s each at 50 GB/s, beside a step that computes for 2.5 s (arithmetic; docs/guide/gpu.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

_AHEAD = 2  # blocks whose activations are on the device beside the one that computes
_SLAB_BYTES = 1 << 30  # a power of two: of pinned memory torch wastes nothing of it
_ALIGNMENT = 512


class Lane(Protocol):
    """A second queue of copies beside the computation; what is given to it runs in order."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """After all that is computed so far."""

    def mark(self) -> Any:
        """An event behind the copies so far."""

    def wait(self, event: Any) -> None:
        """What is computed from now on comes after the event."""


class SideStream:
    """A lane on an accelerator."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        return self._stream.record_event()

    def wait(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


class Here:
    """A CPU's lane: copies are done at once."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source)

    def mark(self) -> None:
        return None

    def wait(self, event: Any) -> None:
        return None


class Slabs:
    """Host memory in large pieces; a slab is empty again when nothing of it is used any more."""

    def __init__(self, pinned: bool, slab_bytes: int = _SLAB_BYTES) -> None:
        self._pinned, self._slab_bytes = pinned, slab_bytes
        self._slabs: list[_Slab] = []

    @property
    def bytes(self) -> int:
        return sum(len(slab.memory) for slab in self._slabs)

    def take(self, size: int) -> tuple[Tensor, Callable[[], None]]:
        """Bytes (uint8), and what gives them back."""
        found = next((slab for slab in self._slabs if slab.has(size)), None)
        if found is None:
            length = -(-size // self._slab_bytes) * self._slab_bytes
            found = _Slab(torch.empty(length, dtype=torch.uint8, pin_memory=self._pinned))
            self._slabs.append(found)
        return found.take(size), found.give_back


class _Slab:
    def __init__(self, memory: Tensor) -> None:
        self.memory, self._begin, self._used = memory, 0, 0

    def has(self, size: int) -> bool:
        return self._begin + size <= len(self.memory)

    def take(self, size: int) -> Tensor:
        piece = self.memory[self._begin : self._begin + size]
        self._begin += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._used += 1
        return piece

    def give_back(self) -> None:
        self._used -= 1
        if not self._used:
            self._begin = 0


class _Moved:
    """The bytes of one storage of the device; `here` is it, while it is there."""

    def __init__(self, block: int, source: Tensor, slabs: Slabs) -> None:
        self.block, self.size = block, len(source)
        self.here: Tensor | None = source
        self.arrival: Any = None  # an event behind its copy back, until it was waited for
        self.host, give_back = slabs.take(self.size)
        # Copies are in one order: the next user's copy comes behind the last one of ours.
        weakref.finalize(self, give_back)


class _Stays(NamedTuple):
    """Of one of the last blocks; with it the backward pass begins to fetch others."""

    block: int
    tensor: Tensor


class Offload(saved_tensors_hooks):
    """A context whose saved activations wait on the host; `begin` before each of `blocks`.

    Weights and storages under `at_least_bytes` stay. A storage that several operations save goes
    once, which is right where autograd is: what is saved must not be written to.
    """

    def __init__(
        self, device: torch.device, blocks: int, lane: Lane, slabs: Slabs, at_least_bytes: int
    ) -> None:
        super().__init__(self._pack, self._unpack)
        self._first_to_stay = blocks - _AHEAD
        self._device, self._lane, self._slabs = device, lane, slabs
        self._at_least_bytes = at_least_bytes
        self._block = -1
        self._weights: Callable[[], Iterable[Tensor]] = tuple
        self._kept: set[int | None] | None = None  # addresses of the block's weights
        # By storage; the weak reference keeps its number from being used again.
        self._known: dict[int, tuple[StorageWeakRef, weakref.ref[_Moved]]] = {}
        self._of_block: list[list[weakref.ref[_Moved]]] = []
        self._outgoing: list[Any] = []  # of each block, an event behind its copies to the host

    def begin(self, weights: Callable[[], Iterable[Tensor]]) -> None:
        """The next block begins, whose weights these are (asked for when it has gathered them)."""
        if self._block >= 0:
            self._outgoing.append(self._lane.mark())
        self._block += 1
        self._weights, self._kept = weights, None
        self._of_block.append([])
        if (done := self._block - _AHEAD) >= 0:
            self._lane.wait(self._outgoing[done])
            for moved in self._alive(done):
                moved.here = None

    def _pack(self, tensor: Tensor) -> Any:
        storage = _storage_of(tensor)
        if storage is None or storage.nbytes() < max(1, self._at_least_bytes):
            return tensor
        if self._kept is None:
            # Hooks get tensors detached and transposed; the storage tells weights from activations.
            self._kept = {_address(weight) for weight in self._weights()}
        if storage.data_ptr() in self._kept:
            return tensor
        if self._block >= self._first_to_stay:
            return _Stays(self._block, tensor)
        view = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
        return self._moved(storage), view

    def _moved(self, storage: torch.UntypedStorage) -> _Moved:
        key = storage._cdata
        if key in self._known and (moved := self._known[key][1]()) is not None:
            return moved
        source = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        moved = _Moved(self._block, source, self._slabs)
        self._lane.copy(moved.host, source)
        self._known[key] = StorageWeakRef(storage), weakref.ref(moved)
        self._of_block[self._block].append(weakref.ref(moved))
        return moved

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, _Stays):
            self._fetch(self._alive(packed.block - 1))
            return packed.tensor
        moved, (dtype, shape, stride, offset) = packed
        if moved.here is None:  # the caption, which belongs to the first block
            self._fetch([moved])
        if moved.arrival is not None:
            self._lane.wait(moved.arrival)
            moved.arrival = None
        self._fetch(self._alive(moved.block - 1))
        whole = moved.here.untyped_storage()
        return torch.empty(0, dtype=dtype, device=self._device).set_(whole, offset, shape, stride)

    def _fetch(self, wanted: list[_Moved]) -> None:
        """Begin to copy back what of it is not on the device."""
        away = [moved for moved in wanted if moved.here is None]
        for moved in away:
            moved.here = torch.empty(moved.size, dtype=torch.uint8, device=self._device)
            self._lane.copy(moved.here, moved.host)
        if away:
            arrival = self._lane.mark()
            for moved in away:
                moved.arrival = arrival

    def _alive(self, block: int) -> list[_Moved]:
        refs = self._of_block[block] if block >= 0 else []
        return [moved for ref in refs if (moved := ref()) is not None]


_LANES: dict[torch.device, tuple[Lane, Slabs]] = {}  # kept from step to step


def to_host(device: torch.device, blocks: int, at_least_bytes: int = 1 << 20) -> Offload:
    """An Offload of that many blocks, with the lane and the host memory of the steps before."""
    if device not in _LANES:
        on_cuda = device.type == "cuda"
        lane: Lane = SideStream(device) if on_cuda else Here()
        _LANES[device] = lane, Slabs(pinned=on_cuda)
    return Offload(device, blocks, *_LANES[device], at_least_bytes)


def _storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a sharded tensor has none of its own
        return None


def _address(tensor: Tensor) -> int | None:
    storage = _storage_of(tensor)
    return None if storage is None else storage.data_ptr()
