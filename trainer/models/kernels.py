"""Which kernels attend for a shape, told from numbers alone: no tensor is made."""

from __future__ import annotations

from trainer.models.activation_checkpointing import Kernels
from trainer.models.attention.frames import MOST_FRAMES, MOST_WIDTH
from trainer.models.attention.short import MOST_KEYS
from trainer.models.attention.table import Table


def kernels_used(
    table: Table, device: str, itemsize: int, head_width: int, frames: int, places: int, text: int
) -> Kernels:
    """Which kernels attend on a device ("cuda", "cpu"), as attention/calls.py chooses them."""
    if device == "cpu":
        short = MOST_KEYS if itemsize > 2 else 0
        return Kernels(
            *("products" if keys <= short else "flash" for keys in (places, frames, text))
        )
    temporal = table.choose("temporal", frames)
    if temporal == "frames":
        fits = frames <= MOST_FRAMES and head_width <= MOST_WIDTH
        if not fits or head_width % 8:
            temporal = "products"
    return Kernels(table.choose("spatial", places), temporal, table.choose("text", text))
