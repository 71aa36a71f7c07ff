"""`stats`: what is in a manifest, and what a training config makes of it.

python -m trainer.data stats manifest.csv
python -m trainer.data stats manifest.csv stage1 --world 192 --epochs 3 --picture stats.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from trainer.arguments import whole
from trainer.config.load import load
from trainer.data.manifest.left_out import report
from trainer.data.manifest.manifest import MAX_WRONG_ROWS, Manifest, ManifestError
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import BucketUse, Cursor, DataPlan, uses
from trainer.data.tools.manifest_stats import SIZES_SHOWN, UNITS, Epoch, Stats, describe
from trainer.runlog.progress import RowProgress

WARNINGS_SHOWN = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", type=Path, help="csv, parquet or a folder of shards")
    parser.add_argument("config", nargs="?", help="training config, a file or a short name")
    parser.add_argument("--world", type=whole(1), default=1, help="ranks (%(default)s)")
    parser.add_argument("--epoch", type=whole(), default=0, help="first epoch (%(default)s)")
    parser.add_argument("--epochs", type=whole(1), default=1, help="how many (%(default)s)")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw histograms")
    parser.add_argument("--json", action="store_true")
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

        draw(args.picture, manifest, stats)
        print(f"picture: {args.picture}", file=sys.stderr)
    return 1 if manifest.wrong else 0


def _with_config(manifest: Manifest, args: argparse.Namespace) -> Stats:
    config = load(args.config)
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    plan = DataPlan(manifest, buckets, config.seed, frame_interval=config.dataset.frame_interval)
    epochs: list[Epoch] = []
    lines: list[BucketUse] = []
    for number in range(args.epoch, args.epoch + args.epochs):
        epoch = plan.epoch(number)
        used = uses(epoch, buckets)
        lines = lines or used
        clips = sum(use.clips for use in used)
        epochs.append(Epoch(number, clips, len(epoch), plan.steps(Cursor(number, 0), args.world)))
    return replace(
        describe(manifest),
        epochs=tuple(epochs),
        buckets=tuple(
            {
                **use.bucket._asdict(),
                "name": use.bucket.name,
                "clips": use.clips,
                "microbatches": use.microbatches,
                "left_out": use.left_out,
            }
            for use in lines
        ),
        warnings=tuple(warnings_of(lines, buckets, epochs)),
    )


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
    lines = [f"{stats.rows:,} clips" + (f", {stats.left_out:,} left out" if stats.left_out else "")]
    lines.append(
        f"{'':<14}{'least':>12}{'5 %':>12}{'25 %':>12}{'50 %':>12}"
        f"{'75 %':>12}{'95 %':>12}{'most':>12}"
    )
    for name, quantiles in stats.spreads.items():
        cells = "".join(f"{_short(value):>12}" for value in quantiles.values())
        lines.append(f"{name:<14}{cells}  {UNITS[name]}")
    if stats.unknown_fps:
        lines.append(f"rate unknown of {stats.unknown_fps:,}")
    shown = list(stats.sizes.items())[:SIZES_SHOWN]
    lines += ["", *(f"{size:<14}{count:>12,}{count / stats.rows:>8.1%}" for size, count in shown)]
    if len(stats.sizes) > len(shown):
        rest = sum(stats.sizes.values()) - sum(count for _, count in shown)
        lines.append(
            f"{len(stats.sizes) - len(shown):,} other sizes{rest:>12,}{rest / stats.rows:>8.1%}"
        )
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


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
