"""Tools for manifests.

python -m trainer.data probe clips.csv manifest.csv    # path,text -> every column
python -m trainer.data stats manifest.csv stage1       # buckets and steps of a config
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from trainer.errors import TrainerError


def main(argv: list[str] | None = None) -> int:
    """Exit code 0; 1 when rows had to be left out; 2 for wrong usage or an unusable file."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    probe = verbs.add_parser("probe", help="write a whole manifest from path and text")
    probe.add_argument("source", type=Path, help="csv or parquet with the columns path and text")
    probe.add_argument("out", type=Path, help="manifest to write, csv or parquet")
    probe.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    probe.add_argument("--root", type=Path, help="folder that relative paths start from")
    probe.add_argument("--clip-timeout-s", type=float, default=30.0)
    stats = verbs.add_parser("stats", help="what a config makes of a manifest")
    stats.add_argument("manifest", type=Path)
    stats.add_argument("config", help="training config, a file or a short name")
    stats.add_argument("--world", type=int, default=1, help="ranks")
    stats.add_argument("--epoch", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        return _probe(args) if args.verb == "probe" else _stats(args)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code


def _probe(args: argparse.Namespace) -> int:
    from trainer.data.manifest import check_suffix, write_columns
    from trainer.data.probe import probe_manifest

    check_suffix(args.out)
    began = last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 2 or done == total:
            left_s = (now - began) / done * (total - done)
            print(f"{done:,} of {total:,}, {left_s:,.0f} s left", file=sys.stderr)
            last = now

    probed = probe_manifest(args.source, args.workers, args.root, args.clip_timeout_s, progress)
    write_columns(args.out, probed.columns)
    print(f"{args.out}: {len(probed):,} rows")
    for row in probed.bad:
        print(f"left out, line {row}", file=sys.stderr)
    return 1 if probed.bad else 0


def _stats(args: argparse.Namespace) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
