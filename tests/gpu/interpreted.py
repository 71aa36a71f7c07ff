"""Errors of the Triton kernels against fp64, as JSON: run it with TRITON_INTERPRET=1 on a CPU."""

from __future__ import annotations

import itertools
import json

import torch

from tests.gpu.items.kernels import frames_errors, frames_inputs
from trainer.models.attention.frames import frames_attention, is_usable

# Clips, frames, places, heads, width of a head: one frame, sequences that share a block, and a long one.
SHAPES = [
    (2, 1, 5, 4, 72),
    (1, 5, 7, 3, 72),
    (2, 15, 3, 2, 72),
    (1, 120, 2, 2, 72),
    (3, 17, 3, 2, 16),
]


def errors(shape: tuple[int, ...], dtype: torch.dtype) -> list[float]:
    """Relative to the largest value: of the output and of three gradients."""
    parts, grad = frames_inputs(shape, dtype, torch.device("cpu"))
    assert is_usable(parts[0])
    out = frames_attention(*parts)
    given = (out.detach(), *torch.autograd.grad(out, parts, grad))
    return frames_errors(given, parts, grad)


if __name__ == "__main__":
    torch.manual_seed(0)
    assert not is_usable(
        torch.zeros(1, 5, 2, 2, 12)
    )  # its rows do not begin at multiples of 16 bytes
    dtypes = {"fp32": torch.float32, "fp16": torch.float16}  # bf16 products fail in the interpreter
    found = {
        f"{name} {shape}": errors(shape, dtype)
        for shape, (name, dtype) in itertools.product(SHAPES, dtypes.items())
    }
    print(json.dumps(found))
