"""A decoded frame into its place in a clip: scaled to cover the bucket's size, its centre cropped.

libswscale scales while it converts to RGB, and bytes stay uint8: the accelerator makes [-1, 1].
Its bilinear kernel widens when it shrinks (antialiasing), upstream's (upstream_resize.py) does not.
On one thread: libswscale's default of one a core costs 10 times as much for a small frame (0.071
against 0.007 CPU ms for 64 to 16 pixels, PyAV 18.1).
"""

# C channels · H,W height, width in pixels

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from trainer.data.video.decode import Window

Put = Callable[[Any, Window, NDArray[Any]], None]

_GBR = (1, 2, 0)  # channel of each plane of gbrp; planes need no transposing, unlike rgb24
_reformatter = VideoReformatter()  # keeps its scaling context while sizes stay the same


def turns_of(frame: Any) -> int:
    """Quarter turns, counter-clockwise as numpy's, that the container asks for."""
    return round(frame.rotation / 90) % 4


def put(frame: Any, window: Window, out_CHW: NDArray[Any]) -> None:
    turns = turns_of(frame)
    height, width = window.height, window.width
    if turns % 2:
        height, width = width, height
    grow = max(height / frame.height, width / frame.width)
    tall = max(height, round(frame.height * grow))
    wide = max(width, round(frame.width * grow))
    how: Any = {"format": "gbrp", "interpolation": window.resize.upper(), **ONE_THREAD}
    scaled = _reformatter.reformat(frame, width=wide, height=tall, **how)
    top, left = round((tall - height) / 2), round((wide - width) / 2)
    planes: Any = scaled.planes  # each offers its bytes as a buffer
    for plane, channel in zip(planes, _GBR, strict=True):
        pixels: NDArray[np.uint8] = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        pixels = pixels[top : top + height, left : left + width]
        out_CHW[channel] = np.rot90(pixels, turns) if turns else pixels


def _one_thread() -> dict[str, int]:
    """The argument that keeps libswscale on this thread, if PyAV has it (older: always one)."""
    blank = av.VideoFrame(16, 16, "yuv420p")
    try:
        VideoReformatter().reformat(blank, format="gbrp", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}


ONE_THREAD = _one_thread()
