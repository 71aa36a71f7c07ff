"""`stats`: what is in a manifest, and what a training config makes of it.

python -m trainer.data stats manifest.csv
python -m trainer.data stats manifest.csv stage1 --ranks 192 --epochs 3 --picture stats.png
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.command_line import whole
from trainer.config.load import load
from trainer.data.manifest.left_out import report
from trainer.data.manifest.manifest import MAX_WRONG_ROWS, Manifest, ManifestError
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import BucketUse, Cursor, plan_for, uses
from trainer.runlog.progress import RowProgress
from trainer.runlog.units import counted

SIZES_SHOWN = 12
UNITS = {
    "frames": "frames",
    "resolution": "pixels",
    "aspect ratio": "height / width",
    "rate": "frames/s",
}
_SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
WARNINGS_SHOWN = 30


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", type=Path, help="csv, parquet or a folder of shards")
    parser.add_argument("config", nargs="?", help="training config, a file or a short name")
    text = "ranks of a run (%(default)s)"
    parser.add_argument("--ranks", dest="world", type=whole(1), default=1, metavar="N", help=text)
    former = argparse.SUPPRESS
    parser.add_argument("--world", dest="world", type=whole(1), default=1, help=former)
    parser.add_argument("--epoch", type=whole(), default=0, help="first epoch (%(default)s)")
    parser.add_argument("--epochs", type=whole(1), default=1, help="how many (%(default)s)")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw histograms")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--max-wrong-rows", type=whole(), default=MAX_WRONG_ROWS, metavar="N")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when rows would be left out of training."""
    if args.picture is not None and args.picture.suffix != ".png":
        raise ManifestError(f"--picture {args.picture}: pictures are .png")
    with RowProgress(f"stats {args.manifest.name}", args.quiet) as progress:
        manifest = read_manifest(
            args.manifest,
            max_wrong_rows=args.max_wrong_rows,
            with_texts=False,
            progress=progress.at,
        )
    stats = _with_config(manifest, args) if args.config else describe(manifest)
    if args.json:
        print(json.dumps({"schema": 1, "command": "stats", **asdict(stats)}))
    else:
        print(text(stats, args.world))
    report(manifest.wrong)
    for warning in stats.warnings[:WARNINGS_SHOWN]:
        print(f"warning: {warning}", file=sys.stderr)
    if len(stats.warnings) > WARNINGS_SHOWN:
        more = len(stats.warnings) - WARNINGS_SHOWN
        print(f"warning: {more:,} more buckets train nothing (--json lists them)", file=sys.stderr)
    if args.picture is not None:
        from trainer.data.tools.stats_picture import draw

        sizes, rest = _largest(stats.sizes)
        if rest:
            sizes["others"] = rest
        steps = {f"epoch {one.epoch}": one.steps for one in stats.epochs}
        draw(args.picture, manifest, sizes, stats.buckets, steps)
        print(f"picture: {args.picture}", file=sys.stderr)
    return 1 if manifest.wrong else 0


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


def _with_config(manifest: Manifest, args: argparse.Namespace) -> Stats:
    config = load(args.config)
    plan = plan_for(config, manifest)
    epochs: list[Epoch] = []
    first: list[BucketUse] = []
    for number in range(args.epoch, args.epoch + args.epochs):
        epoch = plan.epoch(number)
        uses_here = uses(epoch, plan.buckets)
        first = first or uses_here
        clips = sum(use.clips for use in uses_here)
        epochs.append(Epoch(number, clips, len(epoch), plan.steps(Cursor(number, 0), args.world)))
    used = tuple(
        {**use.bucket._asdict(), "name": use.bucket.name, "clips": use.clips}
        | {"microbatches": use.microbatches, "left_out": use.left_out}
        for use in first
    )
    unplaced = plan.unplaced()
    warnings = (
        *([f"{unplaced}: never trained on"] if unplaced else []),
        *warnings_of(first, plan.buckets, epochs),
    )
    return replace(describe(manifest), epochs=tuple(epochs), buckets=used, warnings=warnings)


def warnings_of(lines: Sequence[BucketUse], buckets: Buckets, epochs: Sequence[Epoch]) -> list[str]:
    """Buckets and lines of the configuration that train nothing, and epochs without a step."""
    found = [
        f"{use.bucket.name} has {use.clips} clips, a batch is {use.bucket.batch_size}"
        for use in lines
        if not use.microbatches
    ]
    seen = {(use.bucket.resolution, use.bucket.frames) for use in lines}
    for slot in buckets.slots:
        where = (slot.resolution.name, slot.frames)
        if slot.batch_size and slot.keep > 0 and where not in seen:
            found.append(f"{slot.resolution.name} {slot.frames}f has no clip at all")
    return found + [f"epoch {one.epoch} has no whole step" for one in epochs if not one.steps]


def text(stats: Stats, world: int) -> str:
    """What is printed."""
    lines = [
        counted(stats.rows, "clip") + (f", {stats.left_out:,} left out" if stats.left_out else "")
    ]
    columns = ("least", "5 %", "25 %", "50 %", "75 %", "95 %", "most")
    lines.append(" " * 14 + "".join(f"{column:>12}" for column in columns))
    for name, quantiles in stats.spreads.items():
        cells = "".join(f"{_short(value):>12}" for value in quantiles.values())
        lines.append(f"{name:<14}{cells}  {UNITS[name]}")
    if stats.unknown_fps:
        lines.append(f"rate unknown of {stats.unknown_fps:,}")
    shown, rest = _largest(stats.sizes)
    lines.append("")
    for size, count in shown.items():
        lines.append(f"{size:<14}{count:>12,}{count / stats.rows:>8.1%}")
    if rest:
        others = f"{len(stats.sizes) - len(shown):,} other sizes"
        lines.append(f"{others}{rest:>12,}{rest / stats.rows:>8.1%}")
    if not stats.epochs:
        return "\n".join(lines)
    first = stats.epochs[0]
    lines += ["", f"{first.clips:,} clips in a bucket of epoch {first.epoch}"]
    lines.append(
        f"{'bucket':<20}{'size':>12}{'batch':>7}{'clips':>10}{'batches':>9}{'left out':>10}"
    )
    for use in stats.buckets:
        size = f"{use['height']}x{use['width']}"
        lines.append(
            f"{use['name']:<20}{size:>12}{use['batch_size']:>7}{use['clips']:>10,}"
            f"{use['microbatches']:>9,}{use['left_out']:>10,}"
        )
    for one in stats.epochs:
        ranks = f"{world} ranks" if world > 1 else "1 rank"
        lines.append(
            f"epoch {one.epoch}: {one.clips:,} clips, {one.microbatches:,} microbatches, "
            f"{one.steps:,} steps on {ranks}"
        )
    return "\n".join(lines)


def _largest(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """The most frequent sizes, and how many clips have others."""
    shown = dict(itertools.islice(sizes.items(), SIZES_SHOWN))
    return shown, sum(sizes.values()) - sum(shown.values())


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
