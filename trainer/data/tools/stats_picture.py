"""The picture of `stats`: how large, how long, how fast clips are, and what the buckets get."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainer.data.manifest.manifest import Manifest
from trainer.data.tools.manifest_stats import SIZES_SHOWN, Stats

PAPER, INK, BAR, WARN = "#ffffff", "#222222", "#4a7fb0", "#c0562f"
DPI = 100
_SLOTS_SHOWN = 40


def draw(path: Path, manifest: Manifest, stats: Stats) -> None:
    """Write a PNG; it appears whole or not at all."""
    slots = len(_by_slot(stats, "clips"))
    rows = 2 if slots else 1
    height = 4.2 * rows + 0.14 * max(0, slots - 12)
    figure = Figure(figsize=(13, height), dpi=DPI)
    figure.set_facecolor(PAPER)
    grid = figure.add_gridspec(rows, 3, height_ratios=[1.0, max(1.0, slots / 14)][:rows])
    axes = [figure.add_subplot(grid[row, column]) for row in range(rows) for column in range(3)]
    shown = dict(list(stats.sizes.items())[:SIZES_SHOWN])
    if rest := sum(stats.sizes.values()) - sum(shown.values()):
        shown["others"] = rest
    _bars(axes[0], shown, "height x width")
    _lengths(axes[1], manifest, stats)
    _rates(axes[2], manifest)
    if slots:
        _bars(axes[3], _by_slot(stats, "clips"), "clips in each bucket")
        title = f"batches of epoch {stats.epochs[0].epoch}"
        _bars(axes[4], _by_slot(stats, "microbatches"), title)
        steps = {f"epoch {one.epoch}": one.steps for one in stats.epochs}
        _bars(axes[5], steps, "steps of each epoch")
    figure.tight_layout()
    fresh = path.with_name(f".{path.name}.new")
    FigureCanvasAgg(figure).print_png(str(fresh))
    fresh.replace(path)


def _by_slot(stats: Stats, what: str) -> dict[str, int]:
    """Clips or microbatches of each (resolution, length), its aspect ratios together."""
    found: Counter[str] = Counter()
    for use in stats.buckets:
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


def _lengths(axes: Any, manifest: Manifest, stats: Stats) -> None:
    frames = manifest.num_frames
    edges = np.unique(np.geomspace(1, max(2, int(frames.max()) + 1), 50).round())
    axes.hist(frames, edges, color=BAR)
    axes.set_xscale("log")
    for length in sorted({use["frames"] for use in stats.buckets}):
        axes.axvline(length, color=WARN, linewidth=0.8)
        axes.text(length, axes.get_ylim()[1], f"{length}", fontsize=7, color=WARN, ha="center")
    _title(axes, "frames (lines: lengths of buckets)" if stats.buckets else "frames")


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
