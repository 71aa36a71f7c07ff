"""A decoded frame into its place in a clip: scaled to cover the bucket's size, its centre cropped.

libswscale scales while it converts to RGB, and bytes stay uint8: the accelerator makes [-1, 1].
Its bilinear kernel widens when it shrinks (antialiasing), upstream's (upstream_resize.py) does not.
On one thread: libswscale's default of one a core costs 10 times as much for a small frame (0.071
against 0.007 CPU ms for 64 to 16 pixels, PyAV 18.1).
"""

# C channels · H,W height, width in pixels

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from trainer.data.video.decode import Window

Put = Callable[[Any, Window, NDArray[Any]], None]

_GBR = (1, 2, 0)  # channel of each plane of gbrp; planes need no transposing, unlike rgb24
_reformatter = VideoReformatter()  # keeps its scaling context while sizes stay the same


def _unnamed(cls: Any, number: int) -> Any:
    """A kind of side data that this PyAV has no name for, as FFmpeg 8's EXIF (31): without it a
    frame's side data cannot be looked at at all (PyAV 17.1)."""
    one = object.__new__(cls)
    one._name_, one._value_ = f"UNNAMED_{number}", number
    return one


Type._missing_ = classmethod(_unnamed)  # type: ignore[assignment, method-assign]


class Turn(NamedTuple):
    """How a frame is shown, by the display matrix of its container or EXIF: rows and columns are
    swapped, then each is reversed or not."""

    swaps_sides: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    @classmethod
    def of(cls, frame: Any) -> Turn:
        # As frame.side_data, which the frame would keep: each frame's pixels would then stay until
        # the next collection of garbage, 100 frames and more of a clip at once.
        matrix = SideDataContainer(frame).get(Type.DISPLAYMATRIX)  # type: ignore[call-arg]
        if matrix is None:
            return cls()
        # x' = a x + c y, y' = b x + d y, of 16.16 numbers; what is not a quarter turn is rounded
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
        if abs(b) > abs(a):
            return cls(True, b < 0, c < 0)
        return cls(False, d < 0, a < 0)

    def apply(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """To an array [H, W, …]."""
        turned = pixels.swapaxes(0, 1) if self.swaps_sides else pixels
        rows, columns = (slice(None, None, -1 if flip else 1) for flip in self[1:])
        return turned[rows, columns]


def put(frame: Any, window: Window, out_CHW: NDArray[Any]) -> None:
    turn = Turn.of(frame)
    height, width = window.height, window.width
    if turn.swaps_sides:
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
        out_CHW[channel] = turn.apply(pixels)


def _one_thread() -> dict[str, int]:
    """The argument that keeps libswscale on this thread, if PyAV has it (older: always one)."""
    blank = av.VideoFrame(16, 16, "yuv420p")
    try:
        VideoReformatter().reformat(blank, format="gbrp", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}


ONE_THREAD = _one_thread()
