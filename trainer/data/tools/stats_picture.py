"""The picture of `stats`: how large, how long, how fast clips are, and what the buckets get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainer.data.manifest.manifest import Manifest
from trainer.runlog.atomic_file import part_of

PAPER, INK, BAR, WARN = "#ffffff", "#222222", "#4a7fb0", "#c0562f"
DPI = 100
_SLOTS_SHOWN = 40


def draw(
    path: Path,
    manifest: Manifest,
    sizes: dict[str, int],
    buckets: Sequence[dict[str, Any]],
    steps: dict[str, int],
) -> None:
    """Write a PNG; it appears whole or not at all. `steps` are those of each epoch."""
    clips = _by_slot(buckets, "clips")
    rows = 2 if clips else 1
    height = 4.2 * rows + 0.14 * max(0, len(clips) - 12)
    figure = Figure(figsize=(13, height), dpi=DPI)
    figure.set_facecolor(PAPER)
    grid = figure.add_gridspec(rows, 3, height_ratios=[1.0, max(1.0, len(clips) / 14)][:rows])
    axes = [figure.add_subplot(grid[row, column]) for row in range(rows) for column in range(3)]
    _bars(axes[0], sizes, "height x width")
    _lengths(axes[1], manifest, sorted({use["frames"] for use in buckets}))
    _rates(axes[2], manifest)
    if clips:
        _bars(axes[3], clips, "clips in each bucket")
        _bars(axes[4], _by_slot(buckets, "microbatches"), f"batches of {next(iter(steps))}")
        _bars(axes[5], steps, "steps of each epoch")
    figure.tight_layout()
    with part_of(path) as part:
        FigureCanvasAgg(figure).print_png(str(part))


def _by_slot(buckets: Sequence[dict[str, Any]], what: str) -> dict[str, int]:
    """Clips or microbatches of each (resolution, length), its aspect ratios together."""
    found: Counter[str] = Counter()
    for use in buckets:
        found[f"{use['resolution']} {use['frames']}f"] += use[what]
    return dict(list(found.items())[:_SLOTS_SHOWN])


def _bars(axes: Any, bars: dict[str, int], title: str) -> None:
    places = range(len(bars))[::-1]
    axes.barh(
        places, list(bars.values()), color=[BAR if value else WARN for value in bars.values()]
    )
    axes.set_yticks(places, list(bars), fontsize=8)
    for place, value in zip(places, bars.values(), strict=True):
        color = INK if value else WARN
        axes.text(value, place, f" {value:,}", va="center", fontsize=7, color=color)
    axes.margins(x=0.18)
    _title(axes, title)


def _lengths(axes: Any, manifest: Manifest, lengths: Sequence[int]) -> None:
    frames = manifest.num_frames
    edges = np.unique(np.geomspace(1, max(2, int(frames.max()) + 1), 50).round())
    axes.hist(frames, edges, color=BAR)
    axes.set_xscale("log")
    for length in lengths:
        axes.axvline(length, color=WARN, linewidth=0.8)
        axes.text(length, axes.get_ylim()[1], f"{length}", fontsize=7, color=WARN, ha="center")
    _title(axes, "frames (lines: lengths of buckets)" if lengths else "frames")


def _rates(axes: Any, manifest: Manifest) -> None:
    known = manifest.fps[~np.isnan(manifest.fps)]
    if len(known):
        axes.hist(known, 40, color=BAR)
    _title(axes, "frames a second" + ("" if len(known) else ": nowhere stated"))


def _title(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
