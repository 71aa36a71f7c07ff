"""The picture of `stats`: how large, how long, how fast clips are, and what the buckets get."""

from __future__ import annotations

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
    slots = by_slot(stats)
    rows = 2 if slots else 1
    figure = Figure(
        figsize=(13, 4.2 * rows + (0.14 * max(0, len(slots) - 12) if slots else 0)), dpi=DPI
    )
    figure.set_facecolor(PAPER)
    heights = [1.0, max(1.0, len(slots) / 14)][:rows]
    grid = figure.add_gridspec(rows, 3, height_ratios=heights)
    _sizes(figure.add_subplot(grid[0, 0]), stats)
    _lengths(figure.add_subplot(grid[0, 1]), manifest, stats)
    _rates(figure.add_subplot(grid[0, 2]), manifest)
    if slots:
        _slots(figure.add_subplot(grid[1, 0]), slots, "clips", "clips in each bucket")
        _slots(
            figure.add_subplot(grid[1, 1]),
            slots,
            "microbatches",
            f"batches of epoch {stats.epochs[0].epoch}",
        )
        _epochs(figure.add_subplot(grid[1, 2]), stats)
    figure.tight_layout()
    fresh = path.with_name(f".{path.name}.new")
    FigureCanvasAgg(figure).print_png(str(fresh))
    fresh.replace(path)


def by_slot(stats: Stats) -> dict[str, dict[str, int]]:
    """Clips and microbatches of each (resolution, length), its aspect ratios together."""
    found: dict[str, dict[str, int]] = {}
    for use in stats.buckets:
        slot = found.setdefault(
            f"{use['resolution']} {use['frames']}f", {"clips": 0, "microbatches": 0}
        )
        slot["clips"] += use["clips"]
        slot["microbatches"] += use["microbatches"]
    return dict(list(found.items())[:_SLOTS_SHOWN])


def _bars(axes: Any, names: list[str], values: list[int], title: str) -> None:
    places = range(len(names))[::-1]
    axes.barh(places, values, color=[BAR if value else WARN for value in values])
    axes.set_yticks(places, names, fontsize=8)
    for place, value in zip(places, values, strict=True):
        axes.text(
            value, place, f" {value:,}", va="center", fontsize=7, color=INK if value else WARN
        )
    axes.margins(x=0.18)
    _title(axes, title)


def _sizes(axes: Any, stats: Stats) -> None:
    shown = list(stats.sizes.items())[:SIZES_SHOWN]
    rest = sum(stats.sizes.values()) - sum(count for _, count in shown)
    shown += [("others", rest)] if rest else []
    _bars(axes, [name for name, _ in shown], [count for _, count in shown], "height x width")


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


def _slots(axes: Any, slots: dict[str, dict[str, int]], what: str, title: str) -> None:
    _bars(axes, list(slots), [slot[what] for slot in slots.values()], title)


def _epochs(axes: Any, stats: Stats) -> None:
    names = [f"epoch {one.epoch}" for one in stats.epochs]
    _bars(axes, names, [one.steps for one in stats.epochs], "steps of each epoch")


def _title(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
