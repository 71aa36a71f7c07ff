"""What a manifest holds and what a config makes of it, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest.manifest import Manifest

SIZES_SHOWN = 12
UNITS = {
    "frames": "frames",
    "resolution": "pixels",
    "aspect ratio": "height / width",
    "rate": "frames/s",
}
_SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Epoch:
    """What an epoch makes of the clips."""

    epoch: int
    clips: int  # that are in a bucket
    microbatches: int
    steps: int


@dataclass(frozen=True)
class Stats:
    """All that is printed and drawn."""

    rows: int
    left_out: int
    sizes: dict[str, int]  # height x width -> clips, most frequent first
    spreads: dict[str, dict[str, float]]  # of columns as in UNITS: share -> quantile
    unknown_fps: int
    epochs: tuple[Epoch, ...] = ()
    buckets: tuple[dict[str, Any], ...] = ()  # of the first epoch
    warnings: tuple[str, ...] = ()


def describe(manifest: Manifest) -> Stats:
    """Statistics that need no config."""
    height, width = manifest.height.astype(np.int64), manifest.width.astype(np.int64)
    sizes, counts = np.unique(height << 32 | width, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    fps = manifest.fps[~np.isnan(manifest.fps)]
    columns: tuple[NDArray[Any], ...] = (manifest.num_frames, height * width, height / width, fps)
    named = zip(UNITS, columns, strict=True)
    return Stats(
        rows=len(manifest),
        left_out=len(manifest.wrong),
        sizes={
            f"{s >> 32}x{s & 0xFFFFFFFF}": int(n)
            for s, n in zip(sizes[order].tolist(), counts[order].tolist(), strict=True)
        },
        spreads={name: _quantiles(values) for name, values in named if len(values)},
        unknown_fps=len(manifest) - len(fps),
    )


def _quantiles(values: NDArray[Any]) -> dict[str, float]:
    found = np.quantile(values, _SHARES, method="nearest").tolist()
    return dict(zip(map(str, _SHARES), found, strict=True))
