"""Attention kernels by shape, as `python -m trainer.bench attention` measures them, in one process.

Shapes are XL/2's at 360p (heads of 72) and those of other stage 1 buckets that are hard on a kernel.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tests.gpu.run import Figures, Options

if TYPE_CHECKING:
    from trainer.bench.attention_shapes import AttentionShape

# Kind, clips, frames, places of a frame, text tokens.
SHAPES = [
    ("spatial", 8, 15, 920),
    ("temporal", 8, 15, 920),
    ("text", 8, 15, 920, 300),
    ("spatial", 57, 15, 144),
    ("spatial", 2, 15, 3600),
    ("temporal", 4, 30, 920),
    ("temporal", 2, 120, 920),
]
# In the order of their value: a phase that is cut has the first ones of each shape.
KERNELS = {
    "spatial": ("flash", "cudnn", "FA3", "efficient"),
    "temporal": ("frames", "products", "flash", "cudnn", "efficient"),
    "text": ("varlen", "cudnn", "FA3", "efficient", "products"),
}
ON_A_CPU = {"spatial": ("math",), "temporal": ("products",), "text": ("products",)}
FA3_OF = {"spatial": "flash", "text": "varlen"}  # what torch then runs by another library


def table(options: Options, figures: Figures) -> str:
    """Each kernel of each shape; what a machine does not have is a figure with its reason."""
    from trainer.bench.attention_shapes import AttentionShape

    fastest = []
    for sizes in SHAPES:
        shape = AttentionShape(*sizes)  # type: ignore[arg-type]
        found: dict[str, float] = {}
        for kernel in (KERNELS if options.device == "cuda" else ON_A_CPU)[shape.kind]:
            row = figures.attempt(
                f"{shape.name} {kernel}", lambda s=shape, k=kernel: _measure(options, s, k)
            )
            if row and "forward_s" in row:
                found[kernel] = row["forward_s"] + row["backward_s"]
        if found:
            best = min(found, key=found.__getitem__)
            fastest.append(f"{shape.name} {best} {found[best] * 1e3:.2f} ms")
    return "fastest: " + ", ".join(fastest)


def restore_flash() -> None:
    """torch's own flash attention again."""
    from torch.nn import attention

    if hasattr(attention, "restore_flash_attention_impl"):
        attention.restore_flash_attention_impl()


def _measure(options: Options, shape: AttentionShape, kernel: str) -> dict[str, Any]:
    from trainer.bench.attention_trial import NotAvailable, attention_trial
    from trainer.models.attention import flash3

    if options.tiny:
        batch, places = min(shape.batch, 2), min(shape.places, 3)
        shape = replace(shape, batch=batch, places=places, text=min(shape.text, 9))
        shape = replace(shape, frames=min(shape.frames, 15))
    by_fa3 = kernel == "FA3"
    if by_fa3 and (reason := flash3.why_not()):
        return {"not_available": reason}
    try:
        own = FA3_OF[shape.kind] if by_fa3 else kernel
        found = attention_trial(shape, own, options.device, lambda done, total: None)
    finally:
        if by_fa3:
            restore_flash()
    if isinstance(found, NotAvailable):
        return {"not_available": found.reason}
    flops = 4.0 * shape.tokens * shape.keys * shape.heads * shape.width
    rates = {"forward_flops_per_s": flops / found.forward_s}
    return {**asdict(found), **rates, "backward_flops_per_s": 2.5 * flops / found.backward_s}
