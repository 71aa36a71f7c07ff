"""A block by our kernels' formulas: the numbers, gradients and memory of the plain one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.models.activation_checkpointing import Kernels, block_bytes
from trainer.models.block import stdit_block
from trainer.models.block.rows import fits
from trainer.models.block.stdit_block import STDiT3Block, run_fused
from trainer.models.stdit import build_stdit
from trainer.models.stdit_config import STDiT3Config

B, T, S, L, D, HEADS = 2, 5, 7, 6, 64, 4
KEEP = torch.tensor([[True] * 4 + [False] * 2, [True] * 2 + [False] * 4])


def made(temporal: bool, qk_norm: bool = True) -> STDiT3Block:
    torch.manual_seed(0)
    config = STDiT3Config(hidden_size=D, num_heads=HEADS, qk_norm=qk_norm)
    block = STDiT3Block(config, temporal).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return block


def passes(block: STDiT3Block, modulations: int, fused: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = [random(B, T, S, D), random(B, L, D), random(B, modulations, 6, D)]
    x, y, t = (each.requires_grad_() for each in inputs)
    rotation = (random(T, D // HEADS // 2), random(T, D // HEADS // 2)) if block.temporal else None
    block.zero_grad()
    if fused:
        out = run_fused(block, x, y, KEEP, block.scale_shift_table + t, rotation)
    else:
        out = block(x, y, KEEP, t, rotation)
    out.backward(random(*out.shape))
    grads = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, "y": y.grad, "t": t.grad, **grads}  # type: ignore


@pytest.mark.parametrize("temporal", [False, True])
@pytest.mark.parametrize("modulations", [1, T])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_the_same_numbers_and_gradients_in_fp64(
    temporal: bool, modulations: int, qk_norm: bool
) -> None:
    block = made(temporal, qk_norm)
    wanted, found = (passes(block, modulations, fused) for fused in (False, True))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_frozen_weights_get_no_gradient() -> None:
    block = made(False).requires_grad_(False)
    found = passes(block, 1, fused=True)
    assert found.keys() == {"out", "x", "y", "t"}


@pytest.mark.parametrize("temporal", [False, True])
def test_what_it_keeps_is_what_is_predicted(
    temporal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = STDiT3Config(hidden_size=144, num_heads=2, qk_norm=True)
    kernels = Kernels("flash", "frames", "flash", fused=True)
    sizes = {"batch": 2, "frames": 8, "places": 40, "text": 6}
    with torch.device("meta"):
        block = STDiT3Block(config, temporal).bfloat16()
        x = torch.empty(2, 8, 40, 144, dtype=torch.bfloat16, requires_grad=True)
        y = torch.empty(2, 6, 144, dtype=torch.bfloat16)
        table = torch.empty(2, 1, 6, 144, dtype=torch.bfloat16, requires_grad=True)
        rotation = (torch.empty(8, 36), torch.empty(8, 36)) if temporal else None
    kept: dict[int, tuple[Any, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, torch.nn.Parameter):
            kept[storage._cdata] = (storage, storage.nbytes())
        return tensor

    class OneKernel(torch.autograd.Function):
        """What a kernel of attention keeps."""

        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            out = torch.empty_like(inputs[0])
            sums = torch.empty(inputs[0].shape[:-1], dtype=torch.float32, device="meta")
            ctx.save_for_backward(*inputs, out, sums)
            return out

    class Frames:
        """Our kernel across frames keeps the projection."""

        @staticmethod
        def apply(qkv: Tensor, *_: Any) -> Tensor:
            return torch.empty_like(keep(qkv)[..., 0, :, :])

    monkeypatch.setattr(stdit_block.frames, "is_usable", lambda q: True)
    monkeypatch.setattr(stdit_block.branches, "FramesAttention", Frames)
    for name in ("within_frames", "attend"):
        monkeypatch.setattr(stdit_block.calls, name, lambda q, k, v, *_: OneKernel.apply(q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run_fused(block, x, y, None, table, rotation)
    assert out.shape == x.shape
    found = sum(size for _, size in kept.values())
    each = block_bytes(config, *sizes.values(), 2, kernels)
    assert found == pytest.approx(each.temporal if temporal else each.spatial, rel=0.03)


def test_where_our_kernels_are() -> None:
    assert fits("cuda", 2, 1152, 72)
    assert not fits("cuda", 4, 1152, 72)  # fp32
    assert not fits("cpu", 2, 1152, 72)
    assert not fits("cuda", 2, 160, 20)  # rows of a head do not begin at multiples of 16 bytes


@pytest.mark.parametrize(("device", "item"), itertools.product(("cuda", "cpu"), (2, 4)))
def test_torch_compiles_where_our_kernels_are_not(
    device: str, item: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(STDiT3Block, "compile", lambda block, backend: compiled.append(block))
    for fused in (True, False):
        compiled.clear()
        model = build_stdit(hidden_size=64, num_heads=2, depth=1)
        monkeypatch.setattr("trainer.models.compiling.require_compiler", lambda device: None)
        model.run_blocks_by(device, item, fused=fused, compiled=True)
        ours = fused and device == "cuda" and item == 2
        assert [block.fused for block in model.blocks()] == [ours] * 2
        assert len(compiled) == (0 if ours else 2)
