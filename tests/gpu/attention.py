"""Attention kernels by shape, as `python -m trainer.bench attention` measures them.

Shapes are XL/2's at 360p (heads of 72) and those of other stage 1 buckets that are hard on a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Item, Options
from trainer.models.attention.table import KERNELS

if TYPE_CHECKING:
    from trainer.bench.attention_shapes import AttentionShape

BUDGET_S = 240.0
# Kind, clips, frames, places of a frame, text tokens.
SHAPES = [
    ("spatial", 8, 15, 920),
    ("spatial", 57, 15, 144),
    ("spatial", 2, 15, 3600),
    *(("temporal", 8, frames, 920) for frames in (1, 5, 15, 30)),
    ("temporal", 2, 120, 920),
    ("temporal", 475, 1, 144),
    ("text", 8, 15, 920, 300),
]
MORE = {"text": ("products",)}  # beside those that a table may choose


def items(options: Options) -> Iterator[Item]:
    from trainer.bench.attention_shapes import AttentionShape

    for sizes in SHAPES:
        shape = AttentionShape(*sizes)  # type: ignore[arg-type]
        text = f" x {shape.text}" if shape.text else ""
        name = f"{shape.kind} {shape.batch}x{shape.frames}x{shape.places}{text}"
        for kernel in (*KERNELS[shape.kind], *MORE.get(shape.kind, ())):
            yield Item(f"{name} {kernel}", measure, (shape, kernel), 30.0)


def measure(options: Options, shape: AttentionShape, kernel: str) -> dict[str, Any]:
    from trainer.bench.attention_trial import NotAvailable, attention_trial

    if options.tiny:
        batch, places = min(shape.batch, 2), min(shape.places, 3)
        shape = replace(shape, batch=batch, places=places, text=min(shape.text, 9))
        shape = replace(shape, frames=min(shape.frames, 30))
    found = attention_trial(shape, kernel, options.device, lambda done, total: None)
    if isinstance(found, NotAvailable):
        raise RuntimeError(f"not available: {found.reason}")
    forward_ms, backward_ms = found.forward_s * 1e3, found.backward_s * 1e3
    return {
        **asdict(found),
        "headline": f"forward {forward_ms:8.2f} ms  backward {backward_ms:8.2f} ms  "
        f"peak {found.peak_bytes / 1e6:8.0f} MB  error {found.error:.1e}  "
        f"new shape {found.new_shape_s:.2f} s",
    }
