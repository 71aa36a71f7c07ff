"""Figures of one video by numpy alone, without a network; each with its formula and source.

They say what went wrong with a checkpoint at first sight (darker, blurred, frozen, flickering), not
how good a video is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# H,W height, width · Y luma in 0..1
TOP_SHARE = 0.05
BLACK_LUMA, BLACK_SHARE = 32 / 255, 0.98
FREEZE = 0.001
Luma = NDArray[np.float32]


def measure(frames: Iterable[NDArray[np.uint8]]) -> dict[str, float]:
    """All figures of a video, frame by frame: [H, W, 3] RGB each, all of one size. A single frame
    has none of change. Raises ValueError without a frame."""
    stills: dict[str, list[float]] = {"colourfulness": [], "sharpness": [], "black": []}
    lights: list[float] = []
    changes: dict[str, list[float]] = {"motion": [], "stillness": [], "frozen": []}
    before: tuple[NDArray[np.uint8], Luma] | None = None
    for frame_HW3 in frames:
        luma_HW = luma(frame_HW3)
        lights.append(float(luma_HW.mean()))
        stills["colourfulness"].append(colourfulness(frame_HW3))
        stills["sharpness"].append(sharpness(luma_HW))
        stills["black"].append(float(is_black(luma_HW)))
        if before is not None:
            difference_HW = np.abs(luma_HW - before[1])
            changes["motion"].append(motion(difference_HW))
            changes["frozen"].append(float(is_frozen(difference_HW)))
            changes["stillness"].append(stillness(before[0], frame_HW3))
        before = frame_HW3, luma_HW
    if not lights:
        raise ValueError("it has no frame")
    found = {"brightness": float(np.mean(lights))}
    found |= {name: float(np.mean(values)) for name, values in stills.items()}
    if changes["motion"]:
        found |= {name: float(np.mean(values)) for name, values in changes.items()}
        found["flicker"] = flicker(lights)
    return found


def luma(frame_HW3: NDArray[np.uint8]) -> Luma:
    """Y = 0.299 R + 0.587 G + 0.114 B in 0..1 (ITU-R BT.601); its mean is `brightness`."""
    weights = np.array([0.299, 0.587, 0.114], np.float32) / 255
    return (frame_HW3 @ weights).astype(np.float32, copy=False)


def colourfulness(frame_HW3: NDArray[np.uint8]) -> float:
    """sqrt(s_rg^2 + s_yb^2) + 0.3 sqrt(m_rg^2 + m_yb^2), with rg = R - G and yb = (R + G)/2 - B in
    0..255, s deviations and m means (Hasler and Suesstrunk, Measuring colourfulness in natural
    images, SPIE 2003, equation for M^(3))."""
    red, green, blue = np.moveaxis(frame_HW3.astype(np.float32), -1, 0)
    rg, yb = red - green, (red + green) / 2 - blue
    spread = np.hypot(rg.std(), yb.std())
    return float(spread + 0.3 * np.hypot(rg.mean(), yb.mean()))


def sharpness(luma_HW: Luma) -> float:
    """Variance of the Laplacian of 255 Y, kernel [0 1 0; 1 -4 1; 0 1 0], without the border
    (Pech-Pacheco et al., Diatom autofocusing in brightfield microscopy, ICPR 2000)."""
    y = luma_HW * 255
    if min(y.shape) < 3:
        return 0.0
    sides = y[:-2, 1:-1] + y[2:, 1:-1] + y[1:-1, :-2] + y[1:-1, 2:]
    return float((sides - 4 * y[1:-1, 1:-1]).var())


def motion(difference_HW: Luma) -> float:
    """Mean of the 5 % largest |Y' - Y|. VBench's dynamic degree takes the 5 % of pixels with the
    largest optical flow; without a network, change stands for flow."""
    count = max(1, int(difference_HW.size * TOP_SHARE))
    largest = np.partition(difference_HW, difference_HW.size - count, axis=None)[-count:]
    return float(largest.mean())


def stillness(before_HW3: NDArray[np.uint8], frame_HW3: NDArray[np.uint8]) -> float:
    """(255 - mean |RGB' - RGB|) / 255: VBench's temporal_flickering of a pair of frames. A steady
    scene has 1; motion lowers it as well, so VBench asks for still scenes."""
    difference = np.abs(frame_HW3.astype(np.int16) - before_HW3)
    return float((255.0 - difference.mean()) / 255.0)


def flicker(lights: Sequence[float]) -> float:
    """Mean of |y'' - 2 y' + y| / 2 over three frames in a row, y the mean luma of a frame. A steady
    fade has 0; brightness that alternates by d has d."""
    return float(np.abs(np.diff(lights, 2)).mean() / 2) if len(lights) > 2 else 0.0


def is_black(luma_HW: Luma) -> bool:
    """98 % of the pixels or more have 255 Y below 32: the defaults of FFmpeg's blackframe."""
    return bool((luma_HW < BLACK_LUMA).mean() >= BLACK_SHARE)


def is_frozen(difference_HW: Luma) -> bool:
    """Mean |Y' - Y| of at most 0.001: the default tolerance of FFmpeg's filter freezedetect."""
    return bool(difference_HW.mean() <= FREEZE)
