"""Which frames of a clip are wanted, at which size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Window(NamedTuple):
    """Frames `start`, `start` + `interval`, … of a file of >= `expected` frames; their size."""

    start: int
    frames: int
    interval: int
    height: int
    width: int
    expected: int
    resize: str = "bilinear"  # "area": mean of what a pixel covers; "torch": upstream's, float32

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its pixels: uint8 in 0..255, or with "torch" float32 in -1..1."""
        return np.dtype(np.float32 if self.resize == "torch" else np.uint8)
