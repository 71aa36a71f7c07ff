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
        if not fits or head_width % 8 or itemsize > 2:
            temporal = "products"
    to_text = table.choose("text", text)
    if to_text == "varlen" and (itemsize > 2 or head_width % 8):
        # The next one wants rows that begin at multiples of 16 bytes.
        to_text = "math" if head_width * itemsize % 16 else "efficient"
    return Kernels(table.choose("spatial", places), temporal, to_text)
