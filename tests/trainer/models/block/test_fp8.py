"""Products in fp8: what rounding costs, where it is refused, and what is left as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.models.block.test_fused_block import made, passes
from trainer.errors import ConfigError, EngineError
from trainer.models.block import fp8, rows
from trainer.models.block.stdit_block import STDiT3Block
from trainer.models.stdit import STDiT3, build_stdit
from trainer.models.stdit_config import STDiT3Config

# R rows · K width of an input · C width of an output
SIZES: dict[str, Any] = {"hidden_size": 64, "num_heads": 2, "depth": 1}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "step"), [(fp8.E4M3, 2**-4), (fp8.E5M2, 2**-3)])
def test_rows_are_rounded_to_their_own_largest_value(dtype: torch.dtype, step: float) -> None:
    x_RK = random(9, 64) * 10.0 ** torch.arange(-4, 5)[:, None]
    x_RK[4] = 0
    values, scales = rows.scaled(x_RK, dtype)
    assert values.dtype == dtype
    assert (
        values.float().abs().amax(-1).tolist()
        == [fp8.largest(dtype)] * 4 + [0] + [fp8.largest(dtype)] * 4
    )
    error = (values.double() * scales - x_RK).abs()
    assert bool((error <= step * x_RK.abs() + 1e-5 * x_RK.abs().amax(-1, keepdim=True)).all())
    assert float(error.norm()) > 0.1 * step * float(x_RK.norm())


def test_a_value_that_is_no_number_spoils_its_row_alone() -> None:
    x_RK = random(3, 32)
    x_RK[1, 5] = float("inf")
    weight = rows.scaled(random(16, 32), fp8.E4M3)
    out = fp8.product(rows.scaled(x_RK, fp8.E4M3), weight, torch.float32, fast=True)
    assert out.isfinite().all(-1).tolist() == [True, False, True]


def test_a_product_is_that_of_the_rounded_matrices() -> None:
    a, b = rows.scaled(random(5, 32), fp8.E5M2), rows.scaled(random(7, 32), fp8.E4M3)
    wanted = (a.values_RK.double() * a.scales_R1) @ (b.values_RK.double() * b.scales_R1).mT
    bias = random(7)
    found = fp8.product(a, b, torch.float64, bias, fast=False)
    torch.testing.assert_close(found, wanted + bias)


@pytest.mark.parametrize("temporal", [False, True])
@pytest.mark.parametrize("modulations", [1, 5])
def test_a_block_stays_near_the_exact_one(temporal: bool, modulations: int) -> None:
    """Measured: 5 to 6 % of the output, 5 to 17 % of gradients, which attention's softmax spreads.
    Weights as at the start of a training; larger ones multiply what is lost before them."""
    block = made(temporal)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            parameter.fill_(1) if "norm" in name else parameter.mul_(0.42)
    wanted = passes(block, modulations, fused=True)
    block.in_fp8 = True
    found = passes(block, modulations, fused=True)
    assert found.keys() == wanted.keys()
    errors = {
        name: float((found[name] - value).norm() / value.norm()) for name, value in wanted.items()
    }
    assert 0.01 < errors["out"] < 0.08
    assert max(errors.values()) < 0.22
    by_torch = passes(block, modulations, fused=False)  # the block itself runs in fp8, too
    torch.testing.assert_close(by_torch["out"], found["out"])


def test_only_the_large_products_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    kept = fp8.product

    def product(a: fp8.Scaled, b: fp8.Scaled, *args: Any, **more: Any) -> Tensor:
        seen.append(tuple(b.values_RK.shape))
        return kept(a, b, *args, **more)

    monkeypatch.setattr(fp8, "product", product)
    block = made(False)
    block.in_fp8 = True
    passes(block, 1, fused=False)
    qkv, one, wide = (192, 64), (64, 64), (256, 64)
    forward = [qkv, one, one, one, wide, wide[::-1]]
    assert seen[:6] == forward
    assert sorted(seen[6:]) == sorted(shape[::-1] for shape in forward)


def test_weights_and_checkpoints_are_as_without() -> None:
    plain, other = build_stdit(**SIZES), build_stdit(**SIZES)
    other.run_blocks_by("cpu", 4, in_fp8=True)
    assert plain.state_dict().keys() == other.state_dict().keys()


def test_on_a_cpu_it_is_simulated_and_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(STDiT3Block, "compile", lambda block, backend: compiled.append(block))
    model = build_stdit(**SIZES)
    model.run_blocks_by("cpu", 4, compiled=True, in_fp8=True)
    assert [block.in_fp8 for block in model.blocks()] == [True, True]
    assert not compiled


def on_card(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> STDiT3:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    return build_stdit(**SIZES)


def test_a_card_without_fp8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"8\.9 or newer; NVIDIA A100 has 8\.0"):
        on_card(monkeypatch, (8, 0)).run_blocks_by("cuda", 2, in_fp8=True)
    model = on_card(monkeypatch, (9, 0))
    model.run_blocks_by("cuda", 2, in_fp8=True)
    assert model.in_fp8


@pytest.mark.parametrize(
    ("device", "item", "fused", "sizes", "text"),
    [
        ("cuda", 4, True, {}, "bf16"),
        ("cuda", 2, False, {}, "fused_blocks"),
        ("cuda", 2, True, {"num_heads": 16}, "heads that they take"),
        ("cpu", 4, True, {"hidden_size": 72}, "model.hidden_size of a multiple of 16, not 72"),
        ("cpu", 4, True, {"mlp_ratio": 1.125}, "model.mlp_ratio 1.125 makes an MLP of width 72"),
    ],
)
def test_what_cannot_be_in_fp8_is_refused(
    device: str, item: int, fused: bool, sizes: dict[str, Any], text: str
) -> None:
    model = build_stdit(**{**SIZES, **sizes})
    with pytest.raises(ConfigError, match=text):
        model.run_blocks_by(device, item, fused=fused, in_fp8=True)


def refusal(sizes: dict[str, Any]) -> ConfigError | None:
    try:
        fp8.require_widths(STDiT3Config(**sizes))
    except ConfigError as error:
        return error
    return None


@given(
    heads=st.integers(1, 32),
    of_head=st.integers(1, 64),
    ratio=st.floats(0.25, 8, allow_subnormal=False),
)
def test_the_width_that_a_refusal_names_can_be_in_fp8(
    heads: int, of_head: int, ratio: float
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 2 * heads * of_head, "num_heads": heads}
    assume(sizes["hidden_size"] % 4 == 0)
    sizes["mlp_ratio"] = ratio
    for _ in sizes:
        if (error := refusal(sizes)) is not None:
            key = "hidden_size" if "model.hidden_size" in str(error) else "mlp_ratio"
            named = re.search(r"(?: is |mlp_ratio )([\d.]+)", error.hint or "")
            assert named is not None
            sizes[key] = type(sizes[key])(named[1])
    assert refusal(sizes) is None


def test_frozen_weights_get_no_gradient() -> None:
    block = made(False).requires_grad_(False)
    block.in_fp8 = True
    assert passes(block, 1, fused=True).keys() == {"out", "x", "y", "t"}
