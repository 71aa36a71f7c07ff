"""`resize="torch"`: the very pixels that Open-Sora 1.2 trains on, in float32 from -1 to 1.

A video frame becomes full-size RGB, is divided by 255, scaled by torch's bilinear interpolation
without antialiasing and cropped; a still goes through Pillow's bicubic kernel. The order of the
float operations is upstream's, frame by frame: the bits are the same, the memory is that of one
frame. Rotation is applied, which upstream ignores: a bucket is chosen by the size as shown.
"""

# C channels · H,W height, width in pixels

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from trainer.data.video.decode import Window
from trainer.data.video.scale import ONE_THREAD, Turn

# By their names upstream tells images from videos.
STILLS = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})
_MEAN = _DEVIATION = 0.5
_reformatter = VideoReformatter()
torch.set_num_threads(1)


def cover(height: int, width: int, to_height: int, to_width: int) -> tuple[int, int]:
    """Size (height, width) that covers the wanted one: one side is equal, the other at least."""
    up, across = to_height / height, to_width / width
    if up > across:
        return to_height, round(width * up)
    return round(height * across), to_width


def put_as_upstream(frame: Any, window: Window, out_CHW: NDArray[Any]) -> None:
    full: NDArray[Any] = _reformatter.reformat(frame, format="rgb24", **ONE_THREAD).to_ndarray()
    full = np.ascontiguousarray(Turn.of(frame).apply(full))
    frame_1CHW = torch.from_numpy(full).permute(2, 0, 1)[None].float() / 255.0
    size = cover(full.shape[0], full.shape[1], window.height, window.width)
    # antialias=False is upstream's: sharp edges alias where a clip shrinks much
    scaled = interpolate(frame_1CHW, size=size, mode="bilinear", align_corners=False)[0]
    top, left = (size[0] - window.height) // 2, (size[1] - window.width) // 2  # rounded down
    _normalise(scaled[:, top : top + window.height, left : left + window.width], out_CHW)


def read_still(path: str, window: Window, out_CHW: NDArray[Any]) -> tuple[int, int]:
    """Scale and crop an image file into float32 [3, H, W]; returns its height and width as shown.
    Raises OSError for what is no image."""
    from PIL import Image, ImageOps

    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    tall, wide = cover(image.height, image.width, window.height, window.width)
    pixels = np.asarray(image.resize((wide, tall), Image.Resampling.BICUBIC))
    top, left = round((tall - window.height) / 2), round((wide - window.width) / 2)
    pixels = pixels[top : top + window.height, left : left + window.width]
    _normalise(torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float() / 255.0, out_CHW)
    return image.height, image.width


def _normalise(image_CHW: torch.Tensor, out_CHW: NDArray[Any]) -> None:
    torch.from_numpy(out_CHW).copy_((image_CHW - _MEAN) / _DEVIATION)
