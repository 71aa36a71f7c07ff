"""The hand-written backward passes: against the plain formulas, and against finite differences in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.models import fused

# B batch · T frames · S places · N heads · E width of a head
B, T, S, N, E = 2, 3, 4, 2, 6
WIDTH = N * E


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def turned(dtype: torch.dtype = torch.float64) -> fused.Rotation:
    angles = torch.randn(T, E // 2, dtype=dtype)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("frames", [1, T])
def test_norm_and_modulation(frames: int) -> None:
    x, shift, scale = leaf(B, T, S, WIDTH), leaf(B, frames, 1, WIDTH), leaf(B, frames, 1, WIDTH)
    plain = fused.layer_norm(x) * (1 + scale) + shift
    torch.testing.assert_close(fused.norm_modulate(x, shift, scale), plain)
    assert torch.autograd.gradcheck(fused.norm_modulate, (x, shift, scale), fast_mode=True)


@pytest.mark.parametrize("frames", [1, T])
def test_gated_residual(frames: int) -> None:
    x, branch, gate = leaf(B, T, S, WIDTH), leaf(B, T, S, WIDTH), leaf(B, frames, 1, WIDTH)
    torch.testing.assert_close(fused.add_gated(x, branch, gate), x + gate * branch)
    assert torch.autograd.gradcheck(fused.add_gated, (x, branch, gate), fast_mode=True)


def test_gelu() -> None:
    x = torch.linspace(-12, 12, 101, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fused.gelu_tanh(x), F.gelu(x, approximate="tanh"))
    assert torch.autograd.gradcheck(fused.gelu_tanh, (x,), fast_mode=True)
    single = x.detach().float()
    error = fused.gelu_tanh(single) - F.gelu(single.double(), approximate="tanh")
    assert error.abs().max() < 1e-6


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("rotation", [True, False])
def test_heads(norms: bool, rotation: bool) -> None:
    qkv = leaf(B, T, S, 3 * WIDTH)
    weights = (leaf(E), leaf(E)) if norms else None
    turn = turned() if rotation else None

    def split(qkv: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return fused.split_heads(qkv, N, weights, turn)

    for got, want in zip(split(qkv), fused.plain_split_heads(qkv, N, weights, turn), strict=True):
        torch.testing.assert_close(got, want)
    assert torch.autograd.gradcheck(split, (qkv, *(weights or ())), fast_mode=True)


class _Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith(("aten.bmm", "aten.mm", "aten.baddbmm"))
        return func(*args, **(kwargs or {}))


def test_an_accelerator_sums_for_the_weights_of_norms_without_a_product() -> None:
    with torch.device("meta"):
        qkv, weights = leaf(B, T, S, 3 * WIDTH), (leaf(E), leaf(E))
    parts = fused.split_heads(qkv, N, weights, None)
    with _Products() as products:
        sum(part.sum() for part in parts).backward()
    assert products.count == 0


@pytest.mark.parametrize("dim", [-1, -2])
def test_products_and_sums_are_the_same(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(2, 7, E, dtype=torch.float64)
    factors = torch.randn(2, *((1, E) if dim == -1 else (7, 1)), dtype=torch.float64)
    products = fused._weighted(rows, factors, dim)
    monkeypatch.setattr(fused, "_BY_PRODUCTS", ())
    torch.testing.assert_close(fused._weighted(rows, factors, dim), products)


# bf16 keeps 8 bits: one rounding is 2^-9 of a value. Gradients that add up are compared by their size.
BF16 = 2**-7


def of_bf16(function: Callable[..., Any], *inputs: Tensor) -> None:
    """Outputs and gradients of bf16 inputs stay within `BF16` of the same in fp64, in norm."""
    rough = [x.detach().bfloat16().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in rough]
    results = []
    for leaves in (rough, exact):
        out = function(*leaves)
        parts = out if isinstance(out, tuple) else (out,)
        sum((part * (1 + index)).square().sum() for index, part in enumerate(parts)).backward()
        results.append([*(part.detach() for part in parts), *(x.grad for x in leaves)])
    for got, want in zip(*results, strict=True):
        assert got is not None
        assert got.dtype == torch.bfloat16
        assert (got.double() - want).norm() <= BF16 * want.norm()


def test_bf16_stays_close() -> None:
    x, table = leaf(B, T, S, WIDTH), leaf(B, T, 1, WIDTH)
    of_bf16(fused.norm_modulate, x, table, leaf(B, T, 1, WIDTH))
    of_bf16(fused.add_gated, x, leaf(B, T, S, WIDTH), table)
    of_bf16(fused.gelu_tanh, x)
    turn = turned()
    of_bf16(
        lambda qkv, q, k: fused.split_heads(qkv, N, (q, k), turn),
        leaf(B, T, S, 3 * WIDTH), leaf(E), leaf(E),
    )  # fmt: skip


def test_weights_that_are_not_trained_get_no_gradient() -> None:
    x, table = leaf(B, T, S, WIDTH), torch.zeros(B, 1, 1, WIDTH, dtype=torch.float64)
    fused.add_gated(fused.norm_modulate(x, table, table), x, table).sum().backward()
    assert x.grad is not None
    assert table.grad is None
