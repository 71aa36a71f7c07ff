"""What a manifest holds and what a config makes of it, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trainer.data.manifest.manifest import Manifest

SIZES_SHOWN = 12
_SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Spread:
    """Least, 5 %, quarter, half, three quarters, 95 % and greatest of a column."""

    name: str
    unit: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Epoch:
    """What an epoch makes of the clips."""

    epoch: int
    clips: int  # that are in a bucket
    microbatches: int
    steps: int


@dataclass(frozen=True)
class Stats:
    """All that is said and drawn."""

    rows: int
    left_out: int
    sizes: dict[str, int]  # height x width -> clips, most frequent first
    spreads: tuple[Spread, ...]
    unknown_fps: int
    epochs: tuple[Epoch, ...] = ()
    buckets: tuple[dict[str, Any], ...] = ()  # of the first epoch
    warnings: tuple[str, ...] = field(default=())


def describe(manifest: Manifest) -> Stats:
    """What can be said without a config."""
    height, width = manifest.height.astype(np.int64), manifest.width.astype(np.int64)
    sizes, counts = np.unique(height << 32 | width, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    fps = manifest.fps[~np.isnan(manifest.fps)]
    columns = [
        ("frames", "frames", manifest.num_frames),
        ("resolution", "pixels", height * width),
        ("aspect ratio", "height / width", height / width),
        ("rate", "frames/s", fps),
    ]
    return Stats(
        rows=len(manifest),
        left_out=len(manifest.wrong),
        sizes={
            f"{s >> 32}x{s & 0xFFFFFFFF}": int(n)
            for s, n in zip(sizes[order].tolist(), counts[order].tolist(), strict=True)
        },
        spreads=tuple(
            Spread(name, unit, tuple(np.quantile(values, _SHARES, method="nearest").tolist()))
            for name, unit, values in columns
            if len(values)
        ),
        unknown_fps=len(manifest) - len(fps),
    )


def document(stats: Stats) -> dict[str, Any]:
    """As JSON; quantiles stand under their shares."""
    plain = asdict(stats)
    plain["spreads"] = {
        spread.name: dict(zip(map(str, _SHARES), spread.values, strict=True))
        for spread in stats.spreads
    }
    return {"schema": 1, "command": "stats", **plain}
