"""Activations on the host: nothing is read before it has arrived, and they come back ahead."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.models.stdit_cases import batch, small_model
from trainer.models.offloading import Here, Offload, Slabs, to_host
from trainer.models.stdit import STDiT3

CPU = torch.device("cpu")


class Late:
    """A lane that copies only when it is waited for; until then a target holds NaN.

    It holds no source: a device's memory is used again as soon as nobody holds it.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self._pending: list[Callable[[], None]] = []
        self._marks = 0

    def copy(self, target: Tensor, source: Tensor) -> None:
        """`Lane.copy`: a slab is larger than what is cut from it."""
        outward = target.untyped_storage().nbytes() > target.nbytes  # into a slab
        self.log.append("out" if outward else "back")
        target.fill_(255)
        held, into = weakref.ref(source), weakref.ref(target)
        kept = (target if outward else source).untyped_storage()  # the host's

        def work(kept: Any = kept) -> None:
            found, place = held(), into()
            if found is None and outward:
                raise AssertionError("freed before it was copied")
            if found is not None and place is not None:
                place.copy_(found)

        self._pending.append(work)

    def mark(self) -> tuple[int, int]:
        self._marks += 1
        return self._marks, len(self._pending)

    def wait(self, event: tuple[int, int]) -> None:
        self.log.append(f"wait {event[0]}")
        for index in range(event[1]):
            self._pending[index]()
            self._pending[index] = lambda: None


def chain(x: Tensor, blocks: int, host: Offload) -> Tensor:
    """Each block saves one storage, its input."""
    with host:
        for _ in range(blocks):
            host.begin(lambda: ())
            x = torch.sin(x)
    return x


def test_copies_go_out_behind_a_block_and_come_back_before_one() -> None:
    lane, slabs = Late(), Slabs(pinned=False, slab_bytes=1 << 20)
    x = torch.randn(64, 64, requires_grad=True)
    want = torch.autograd.grad(chain_plain(x, 5).sum(), x)[0]
    out = chain(x, 5, Offload(CPU, 5, lane, slabs, 0))
    # The third block's memory takes the place of the first one's, whose copy is waited for.
    assert lane.log == ["out", "out", "wait 1", "out", "wait 2", "wait 3"]
    lane.log.clear()
    (got,) = torch.autograd.grad(out.sum(), x)
    assert got.equal(want)
    # Two blocks have stayed; the others come while the block behind them computes.
    assert lane.log == ["back", "wait 5", "back", "wait 6", "back", "wait 7"]


def chain_plain(x: Tensor, blocks: int) -> Tensor:
    for _ in range(blocks):
        x = torch.sin(x)
    return x


def gradients(model: STDiT3) -> list[Tensor]:
    model.zero_grad()
    model(**batch()).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.long
@pytest.mark.parametrize("what", ["off", "all", "every 2"])
def test_late_copies_change_no_gradient(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, slabs = small_model(depth=4), Slabs(pinned=False, slab_bytes=1 << 20)
    want, sizes = gradients(model), []
    for _ in range(2):  # the second step finds the host memory of the first
        lane = Late()
        monkeypatch.setattr(
            "trainer.models.stdit.to_host", lambda d, n, lane=lane: Offload(d, n, lane, slabs, 0)
        )
        model.enable_grad_checkpoint(what, offload=True)
        for got, exact in zip(gradients(model), want, strict=True):
            assert got.equal(exact)
        assert lane.log.count("back") > 4
        sizes.append(slabs.bytes)
    assert sizes[0] == sizes[1] <= 2 << 20


@pytest.mark.parametrize("blocks", [6, 8])
def test_of_recomputed_blocks_only_the_inputs_go(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Noted(Here):
        def copy(self, target: Tensor, source: Tensor) -> None:
            if target.untyped_storage().nbytes() > target.nbytes:  # into a slab
                sizes.append(source.nbytes)
            super().copy(target, source)

    model = small_model(depth=blocks // 2)
    inputs = batch()
    entry = 4 * 2 * 4 * 3 * 3 * model.config.hidden_size  # fp32, two clips of 4 x 3 x 3 tokens
    monkeypatch.setattr(
        "trainer.models.stdit.to_host",
        lambda d, n: Offload(d, n, Noted(), Slabs(pinned=False), at_least_bytes=entry),
    )
    model.enable_grad_checkpoint("all", offload=True)
    model(**inputs).square().mean().backward()
    assert sizes == [entry] * (blocks - 2)  # two stay
    sizes.clear()
    model.enable_grad_checkpoint("off", offload=True)
    model(**inputs).square().mean().backward()
    assert sum(sizes) > 10 * entry * (blocks - 2)


def test_device_memory_is_free_two_blocks_later() -> None:
    host = Offload(CPU, 6, Here(), Slabs(pinned=False, slab_bytes=1 << 20), 0)
    inputs: list[weakref.ref[Any]] = []
    x = torch.randn(64, 64, requires_grad=True)
    with host:
        for _ in range(6):
            host.begin(lambda: ())
            inputs.append(weakref.ref(x.untyped_storage()))
            x = torch.sin(x)
    alive = [index for index, ref in enumerate(inputs) if ref() is not None]
    assert [index for index in alive if index] == [4, 5]  # the caller holds the first


def test_weights_and_small_tensors_stay() -> None:
    weight = nn.Parameter(torch.randn(64, 64))
    lane, slabs = Late(), Slabs(pinned=False)
    host = Offload(CPU, 3, lane, slabs, at_least_bytes=1024)
    x, small = torch.randn(64, 64, requires_grad=True), torch.randn(8, requires_grad=True)
    with host:
        host.begin(lambda: [weight])
        out = nn.functional.linear(x * 2, weight).sum() + small.sin().sum()
    assert lane.log == ["out"]  # what the product keeps beside its weight
    out.backward()
    torch.testing.assert_close(x.grad, 2 * weight.detach().sum(0).expand(64, 64))


def test_what_several_operations_save_goes_once() -> None:
    lane = Late()
    host = Offload(CPU, 3, lane, Slabs(pinned=False, slab_bytes=1 << 20), 0)
    x = torch.randn(32, 6, requires_grad=True)
    whole = x * 1
    with host:
        host.begin(lambda: ())
        out = whole.sin().sum() + whole[:, 2:4].cos().sum() + whole.T.exp().sum()
    assert lane.log.count("out") == 2  # `whole` for sine and cosine, the exponential's result
    (got,) = torch.autograd.grad(out, x)
    want = x.detach().cos() + x.detach().exp()
    want[:, 2:4] -= x.detach()[:, 2:4].sin()
    torch.testing.assert_close(got, want)


def test_host_memory_is_cut_from_slabs_and_used_again() -> None:
    slabs = Slabs(pinned=False, slab_bytes=4096)
    pieces = [slabs.take(size) for size in (1000, 1500, 700)]  # in steps of 512: 3584
    assert slabs.bytes == 4096  # each alone would be 1024, 2048 and 1024
    assert len({piece.data_ptr() for piece, _ in pieces}) == 3
    large, give_back = slabs.take(9000)
    assert slabs.bytes == 4096 + 3 * 4096
    for _, done in pieces:
        done()
    give_back()
    again, _ = slabs.take(4000)
    assert again.data_ptr() == pieces[0][0].data_ptr()
    assert slabs.bytes == 4 * 4096
    assert len(large) == 9000


def test_the_host_memory_of_a_step_is_kept_for_the_next() -> None:
    first, second = to_host(CPU, 4), to_host(CPU, 4)
    assert first._slabs is second._slabs
    assert isinstance(first._lane, Here)
