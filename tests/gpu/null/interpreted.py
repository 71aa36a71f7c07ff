"""Errors of a block's kernels against torch's formulas in fp64, as JSON, by Triton's interpreter.

TRITON_INTERPRET=1 python -m tests.gpu.null.interpreted     on a CPU, with Triton
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.models.block import fp8, rows, stdit_block
from trainer.models.block.stdit_block import STDiT3Block
from trainer.models.stdit_config import STDiT3Config

# Modulations, rows of each, width: rows of one, of more than a chunk, and of XL/2's width.
SIZES = [(1, 5, 24), (2, 70, 72), (6, 33, 40), (2, 3, 1152)]
HEADS = 4


def error(found: Tensor, wanted: Tensor) -> float:
    """Relative to the largest value."""
    scale = wanted.double().abs().max().clamp(min=1e-9)
    return float((found.double() - wanted.double()).abs().max() / scale)


def by_formula(function: Callable[..., Any], *inputs: Any) -> tuple[Tensor, ...]:
    """In fp64, without the kernels."""
    kept, rows.has_kernels = rows.has_kernels, lambda x: False
    try:
        found = function(*(x.double() if torch.is_tensor(x) else x for x in inputs))
    finally:
        rows.has_kernels = kept
    return found if isinstance(found, tuple) else (found,)


def of_rows(dtype: torch.dtype) -> dict[str, float]:
    """The worst error of each function."""
    found: dict[str, float] = {}
    for groups, each, width in SIZES:

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype)

        count = groups * each
        x, branch, d_x, d_out = (random(count, width) for _ in range(4))
        shift, scale, gate, *_ = random(groups, 6, width).unbind(1)  # lie apart, as in a block
        qkv = random(count, 3, HEADS, width // HEADS)
        weights = random(width // HEADS), random(width // HEADS)
        grads = (random(count, HEADS, width // HEADS) for _ in range(3))
        assert rows.has_kernels(x)
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "norm": (rows.norm_modulate, (x, shift, scale)),
            "sum, norm": (rows.norm_modulate, (x, shift, scale, branch)),
            "norm back": (rows.norm_modulate_backward, (x, d_out, None, shift, scale)),
            "norm back, sum": (rows.norm_modulate_backward, (x, d_out, d_x, shift, scale)),
            "gated": (rows.add_gated, (x, branch, gate)),
            "gated back": (rows.add_gated_backward, (d_out, branch, gate)),
            "gated back, sum": (rows.add_gated_backward, (d_out.clone(), branch, gate, d_x)),
            "heads": (rows.head_norm, (qkv, *weights)),
            "heads back": (rows.head_norm_backward, (qkv, *weights, *grads)),
            "gelu back": (rows.gelu_backward, (x, d_out)),  # last: it writes into d_out
        }
        for name, (function, inputs) in calls.items():
            wanted = by_formula(function, *inputs)
            got = function(*inputs)
            pairs = zip(got if isinstance(got, tuple) else (got,), wanted, strict=True)
            found[name] = max(found.get(name, 0.0), *(error(*pair) for pair in pairs))
    return found


def of_fp8(dtype: torch.dtype) -> dict[str, float]:
    """The largest share of values that differ from torch's rounding; beside them, errors of what is
    not in fp8. Not counted are those that round up to the next power of two: the interpreter loses
    the carry, and gives half of it."""
    found: dict[str, float] = {}

    def note(name: str, worst: float) -> None:
        found[name] = max(found.get(name, 0.0), worst)

    def share(got: fp8.Scaled, wanted: fp8.Scaled) -> float:
        torch.testing.assert_close(got.scales_R1, wanted.scales_R1.float(), rtol=1e-3, atol=1e-9)
        assert got.values_RK.dtype == wanted.values_RK.dtype
        value, right = got.values_RK.float(), wanted.values_RK.float()
        return float(((value != right) & (2 * value != right)).double().mean())

    for groups, each, width in SIZES:

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=dtype)

        x, branch, more, d_out = (random(groups * each, width) for _ in range(4))
        shift, scale, gate, *_ = random(groups, 6, width).unbind(1)
        heads = random(groups * each, 3, HEADS, width // HEADS)
        weights = random(width // HEADS), random(width // HEADS)
        grads = (random(groups * each, HEADS, width // HEADS) for _ in range(3))
        hidden, d_hidden = random(groups * each, 4 * width), random(groups * each, 4 * width)
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "norm": (rows.norm_modulate, (x, shift, scale, None, True)),
            "norm back": (rows.norm_modulate_backward, (x, d_out, more, shift, scale, True)),
            "gated": (rows.add_gated, (x, branch, gate, True)),
            "gated back": (rows.add_gated_backward, (d_out, branch, gate, None, True)),
            "gated back, sum": (rows.add_gated_backward, (d_out, branch, gate, more, True)),
            "heads back": (rows.head_norm_backward, (heads, *weights, *grads, True)),
            "gelu back": (rows.gelu_backward, (hidden, d_hidden, True)),
            "gelu back of wide rows": (rows.gelu_backward, (*random(2, 3, 8208), True)),
            "gelu back of a power of two": (rows.gelu_backward, (x[:, :16], d_out[:, :16], True)),
            "e4m3": (rows.scaled, (x, fp8.E4M3)),
            "gelu": (rows.scaled, (x, fp8.E4M3, True)),
            "e5m2": (rows.scaled, (x, fp8.E5M2)),
            "transposed": (rows.scaled_transposed, (x,)),
        }
        for name, (function, inputs) in calls.items():
            own = [value.clone() if torch.is_tensor(value) else value for value in inputs]
            wanted, got = by_formula(function, *inputs), function(*own)
            if isinstance(got, fp8.Scaled):
                wanted, got = (fp8.Scaled(*wanted),), (got,)
            for one, right in zip(got, wanted, strict=True):
                if isinstance(one, fp8.Scaled):
                    note(f"fp8: {name}", share(one, right))
                else:
                    note(f"beside fp8: {name}", error(one, right))
    return found


def of_block(temporal: bool, modulations: int, qk_norm: bool) -> float:
    """The worst of output and gradients of a block in fp32, frames attention included."""
    config = STDiT3Config(hidden_size=64, num_heads=HEADS, qk_norm=qk_norm)
    batch, frames, places, tokens = 2, modulations if modulations > 1 else 5, 7, 6
    block = STDiT3Block(config, temporal)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    shapes = [(batch, frames, places, 64), (batch, tokens, 64), (batch, modulations, 6, 64)]
    inputs = [torch.randn(shape) for shape in shapes]
    d_out = torch.randn(shapes[0])
    angles = torch.rand(frames, 8)
    keep = torch.tensor([[True] * 4 + [False] * 2, [True] * 2 + [False] * 4])

    def passes(dtype: torch.dtype) -> dict[str, Tensor]:
        block.to(dtype).zero_grad()
        x, y, t = (value.to(dtype).requires_grad_() for value in inputs)
        turn = (angles.cos().to(dtype), angles.sin().to(dtype)) if temporal else None
        assert stdit_block.is_usable(x, HEADS) == (dtype == torch.float32)
        out = block(x, y, keep, t, turn)
        out.backward(d_out.to(dtype))
        grads = {name: p.grad.clone() for name, p in block.named_parameters() if p.grad is not None}
        found = {"out": out.detach(), "x": x.grad, "y": y.grad, "t": t.grad}
        return {**grads, **{name: value for name, value in found.items() if value is not None}}

    wanted, found = passes(torch.float64), passes(torch.float32)
    return max(
        float((found[name].double() - value).norm() / value.norm().clamp(min=1e-9))
        for name, value in wanted.items()
    )


def main() -> None:
    torch.manual_seed(0)
    found = {
        f"{name}, {kind}": worst
        for kind, dtype in (("fp32", torch.float32), ("fp16", torch.float16))
        for name, worst in {**of_rows(dtype), **of_fp8(dtype)}.items()
    }
    for temporal, modulations, qk_norm in itertools.product((False, True), (1, 17), (False, True)):
        name = f"block {temporal=} {modulations=} {qk_norm=}"
        found[name] = of_block(temporal, modulations, qk_norm)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
