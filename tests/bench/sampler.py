"""The epoch's order of a large data set, against the row-wise way, in one run.

python -m tests.bench.sampler [--rows 1300000]

Row-wise is what Open-Sora does for every clip: a numpy generator for each length tried, decisions in
Python (measured on `--sample` rows and scaled). Ours is the whole of it: the manifest read from parquet,
every clip placed, microbatches cut, shuffled, put into steps and hashed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.bench import tiny

if TYPE_CHECKING:
    from trainer.data.manifest.manifest import Manifest

CONFIG = {
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27), 204: ((1.0, 0.1), 13)},
    "256": {1: (0.4, 297), 51: (0.5, 20), 102: ((0.5, 0.33), 10), 204: ((0.5, 0.1), 5)},
    "360p": {1: (0.2, 141), 51: (0.15, 8), 102: ((0.15, 0.33), 4), 204: ((0.15, 0.1), 2)},
    "720p": {1: (0.05, 36), 51: (0.1, 2)},
}


def write(path: Path, rows: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    from trainer.data.tools.simulate import stand_in

    clips = stand_in(rows, mira=True)
    number = np.arange(rows)
    columns = {
        "path": pa.array([f"videos/{n >> 12:04d}/{n:08d}.mp4" for n in number.tolist()]),
        "text": pa.array([f"a clip of something, number {n}" for n in number.tolist()]),
        "num_frames": clips.num_frames,
        "height": clips.height,
        "width": clips.width,
        "aspect_ratio": clips.height / clips.width,
        "fps": clips.fps,
        "resolution": clips.height * clips.width,
    }
    parquet.write_table(pa.table(columns), path)


def sizes_of(path: Path) -> Manifest:
    """Only what decides an epoch's order: three columns."""
    from pyarrow import parquet

    from trainer.data.manifest.manifest import Manifest

    table = parquet.read_table(path, columns=["num_frames", "height", "width"])
    columns = [table.column(name).to_numpy() for name in table.column_names]
    none, rates = range(len(table)), np.empty(0, np.float32)
    return Manifest(path, path.parent, none, none, *columns, rates)  # type: ignore[arg-type]


def ours(path: Path, ranks: int, sizes_only: bool) -> dict[str, float]:
    """In a process of its own, for its peak memory."""
    from trainer.data.manifest.read import read_manifest
    from trainer.data.plan.balance import Balance, classes
    from trainer.data.plan.buckets import Buckets
    from trainer.data.plan.data_plan import DataPlan

    start = time.process_time()
    manifest = sizes_of(path) if sizes_only else read_manifest(path)
    read_s = time.process_time() - start
    buckets = Buckets.parse(CONFIG)
    costs = classes([c.batch_size * c.frames * c.height * c.width for c in buckets.cells])
    start = time.process_time()
    buckets.assign(manifest, 42, 0)
    assign_s = time.process_time() - start
    start = time.process_time()
    plan = DataPlan(manifest, buckets, 42, balance=Balance(8, costs, {0: (ranks, 1)}))
    batches = len(plan.epoch(0))
    plan_s = time.process_time() - start
    # VmHWM, not ru_maxrss: that one keeps the parent's peak over fork and exec.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return {"read": read_s, "assign": assign_s, "plan": plan_s, "batches": batches, "peak": peak}


def row_wise(rows: int) -> float:
    """CPU seconds a row: one generator a length, one decision after another."""
    from trainer.data.plan.buckets import Buckets
    from trainer.data.tools.simulate import stand_in

    buckets, clips = Buckets.parse(CONFIG), stand_in(rows, mira=True)
    cells = len(buckets.cells)
    columns = (clips.num_frames, clips.height, clips.width)
    start = time.process_time()
    groups: dict[tuple[int, str], list[int]] = {}
    for row, (length, height, width) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        blocked = None
        for index, slot in enumerate(buckets.slots):
            shape = slot.resolution
            if shape is blocked or height * width < 0.8 * shape.pixels:
                continue
            generator = np.random.default_rng(42 + row * cells + index)
            if not (length == 1 if slot.frames == 1 else length > slot.frames):
                continue
            if slot.take is not None and generator.random() > slot.take:
                continue
            if slot.keep >= 1 or generator.random() < slot.keep:
                ratio = min(shape.sizes, key=lambda name: abs(float(name) - height / width))
                groups.setdefault((index, ratio), []).append(row)
                break
            blocked = shape
    return (time.process_time() - start) / rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_300_000])
    parser.add_argument("--ranks", type=int, default=192)
    parser.add_argument("--sample", type=int, default=20_000, help="rows placed row by row")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes-only", action="store_true", help=argparse.SUPPRESS)
    args = tiny.parse(parser, rows=[2_000], ranks=2, sample=200)
    if args.child is not None:
        print(json.dumps(ours(args.child, args.ranks, args.sizes_only)))
        return 0
    each = row_wise(args.sample)
    print(f"row-wise placing: {each * 1e6:.0f} us of CPU a row")
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clips.parquet"
            write(path, rows)
            command = [sys.executable, "-m", "tests.bench.sampler", "--child", str(path)]
            command += ["--ranks", str(args.ranks)]
            for what, more in (("three columns", ["--sizes-only"]), ("all columns", [])):
                said = subprocess.run([*command, *more], check=True, capture_output=True, text=True)
                here = json.loads(said.stdout)
                whole = here["read"] + here["plan"]
                print(
                    f"{rows:,} rows, {what}: read {here['read']:.2f} s, placing {here['assign']:.2f} s, "
                    f"whole plan {here['plan']:.2f} s of CPU ({here['batches']:,.0f} microbatches), "
                    f"peak {here['peak'] / 1e6:,.0f} MB; row-wise {each * rows:,.0f} s, "
                    f"{each * rows / whole:,.0f} times as much"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
