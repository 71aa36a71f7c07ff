"""`stats`: what is in a manifest, and what a training config makes of it.

python -m trainer.data stats manifest.csv stage1 --world 192 --picture stats.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest", type=Path)
    parser.add_argument("config", help="training config, a file or a short name")
    parser.add_argument("--world", type=int, default=1, help="ranks")
    parser.add_argument("--epoch", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    from trainer.config import load
    from trainer.data.buckets import Buckets
    from trainer.data.manifest import read_manifest
    from trainer.data.plan import Cursor, DataPlan, uses

    config = load(args.config)
    manifest = read_manifest(args.manifest, config.dataset.root)
    buckets = Buckets.parse(config.bucket_config, config.bucket_semantics)
    plan = DataPlan(manifest, buckets, config.seed, frame_interval=config.dataset.frame_interval)
    epoch = plan.epoch(args.epoch)
    lines = uses(epoch, buckets)
    placed = sum(use.clips for use in lines)
    steps = plan.steps(Cursor(args.epoch, 0), args.world)
    print(f"{len(manifest):,} clips, {placed:,} in a bucket of epoch {args.epoch}")
    print(f"{'bucket':<20}{'size':>12}{'batch':>7}{'clips':>10}{'batches':>9}{'left out':>10}")
    for use in lines:
        size = f"{use.bucket.height}x{use.bucket.width}"
        print(
            f"{use.bucket.name:<20}{size:>12}{use.bucket.batch_size:>7}{use.clips:>10,}"
            f"{use.microbatches:>9,}{use.left_out:>10,}"
        )
    print(f"{len(epoch):,} microbatches, {steps:,} steps on {args.world} ranks")
    for wrong in manifest.wrong[:20]:
        print(f"left out, line {wrong}", file=sys.stderr)
    for use in lines:
        if not use.microbatches:
            what = f"{use.bucket.name} has {use.clips} clips, a batch is {use.bucket.batch_size}"
            print(f"warning: {what}", file=sys.stderr)
    return 1 if manifest.wrong else 0
