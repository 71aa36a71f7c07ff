"""Clips whose frames say which one they are, in several containers."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

STEP = 3  # luma between two frames


def write_clip(
    path: Path,
    frames: int = 60,
    height: int = 48,
    width: int = 64,
    codec: str = "libx264",
    pts: list[int] | None = None,
    picture=None,
    rotation: int = 0,
    **options: str,
) -> Path:
    """Frame k is flat grey of luma 16 + 3k, or what `picture(k)` [H, W] in 16..235 gives."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.time_base = stream.codec_context.time_base = Fraction(1, 24)
        if rotation:
            stream.set_display_rotation(rotation)
        stream.options = options
        planes = np.full((height * 3 // 2, width), 128, np.uint8)
        for index in range(frames):
            planes[:height] = 16 + STEP * index if picture is None else picture(index)
            frame = av.VideoFrame.from_ndarray(planes, "yuv420p")
            frame.pts, frame.time_base = pts[index] if pts else index, Fraction(1, 24)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def frame_numbers(pixels_CTHW: np.ndarray) -> list[int]:
    """Which frames of `write_clip` these are."""
    luma = pixels_CTHW.astype(float).mean((0, 2, 3)) * 219 / 255
    return np.rint(luma / STEP).astype(int).tolist()
