"""Which kernels attend for a shape, told from numbers alone: no tensor is made."""

from __future__ import annotations

from trainer.models.activation_checkpointing import Kernels
from trainer.models.attention.frames import MOST_FRAMES, MOST_WIDTH
from trainer.models.attention.short import MOST_KEYS
from trainer.models.attention.table import Table
from trainer.models.block.rows import MOST_WIDTH as MOST_FUSED
from trainer.models.block.rows import fits


def kernels_used(
    table: Table,
    device: str,
    itemsize: int,
    head_width: int,
    frames: int,
    places: int,
    text: int,
    fused_width: int = 0,
) -> Kernels:
    """Which kernels attend on a device ("cuda", "cpu"), as attention/calls.py chooses them, and
    whether ours are between a block's products: `fused_width` is the model's, 0 for torch's."""
    if device == "cpu":
        short = MOST_KEYS if itemsize > 2 else 0
        to_frames, to_places, to_text = (
            "products" if keys <= short else "flash" for keys in (frames, places, text)
        )
        return Kernels(to_places, to_frames, to_text)
    temporal = table.choose("temporal", frames)
    if temporal == "frames":
        is_small = frames <= MOST_FRAMES and head_width <= MOST_WIDTH
        if not is_small or head_width % 8 or itemsize > 2:
            temporal = "products"
    to_text = table.choose("text", text)
    if to_text == "varlen" and (itemsize > 2 or head_width % 8):
        # The next one wants rows that begin at multiples of 16 bytes.
        to_text = "math" if head_width * itemsize % 16 else "efficient"
    fused = fits(device, itemsize, fused_width or MOST_FUSED + 1, head_width)
    return Kernels(table.choose("spatial", places), temporal, to_text, fused)
