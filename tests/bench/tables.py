"""Manifests: read and filtered against row by row; every verb; planned once or once a rank.

python -m tests.bench.tables [--rows N] [--verb-rows N] [--shared-rows N] [--ranks N]

Row by row is a dictionary a row (csv.DictReader, Arrow's to_pylist), each number made by itself.
Each measurement is a process of its own; processor time is user and system.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import forked, tiny
from tests.ports import free_port
from tests.trainer.ranks import environment

_TEXT = "a man walks a dog along the shore while waves break behind them and gulls circle"
_WORDS = _TEXT.split()
EACH, READ, ONCE = "all by each rank", "read once", "read and planned once"
_LEAST = {"num_frames": 100, "height": 600}


def write(path: Path, rows: int, caption: int = 40) -> None:
    """With captions of so many words, as OpenVid's have (230 characters on average)."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    from trainer.data.tools.simulate import stand_in

    clips = stand_in(rows, mira=True)
    number = np.arange(rows)
    texts = [" ".join(np.roll(_WORDS * 3, n % 17)[:caption]) + f" {n}" for n in range(1000)]
    table = pa.table(
        {
            "path": [f"videos/{n >> 12:04d}/{n:08d}.mp4" for n in number.tolist()],
            "text": [texts[n % 1000] for n in number.tolist()],
            "num_frames": clips.num_frames,
            "height": clips.height,
            "width": clips.width,
            "aspect_ratio": clips.height / clips.width,
            "fps": clips.fps,
            "resolution": clips.height * clips.width,
        }
    )
    if path.suffix == ".csv":
        arrow_csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)


def read_ours(path: Path) -> int:
    from trainer.data.manifest.read import read_manifest

    return len(read_manifest(path))


def _rows(path: Path) -> Any:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            yield from csv.DictReader(file)
    else:
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()


def read_row_wise(path: Path) -> int:
    found = []
    for row in _rows(path):
        for name in ("num_frames", "height", "width"):
            row[name] = int(row[name])
        row["fps"] = float(row["fps"])
        if row["path"] and min(row["num_frames"], row["height"], row["width"]) >= 1:
            found.append(row)
    return len(found)


def filter_ours(path: Path) -> int:
    from trainer.data.__main__ import main

    out = path.with_name(f"ours{path.suffix}")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(["filter", str(path), str(out), "--min-frames", "100", "--min-height", "600", "-q"])
    return int(said.getvalue().split(": ")[1].split(" of ")[0].replace(",", ""))


def filter_row_wise(path: Path) -> int:
    found = [row for row in _rows(path) if all(int(row[k]) >= least for k, least in _LEAST.items())]
    out = path.with_name(f"rows{path.suffix}")
    if path.suffix == ".csv":
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0])
            writer.writeheader()
            writer.writerows(found)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(found), out)
    return len(found)


# verb -> its words; b.csv has every other row of a.csv, s.csv two columns more for every path
VERBS = {
    "filter a.csv": "filter a.csv o.csv --min-frames 100 --where text~shore.*9",
    "filter a.parquet": "filter a.parquet o.parquet --min-frames 100 --min-height 600",
    "merge": "merge a.csv b.csv o.csv",
    "merge --on, csv": "merge a.csv s.csv o.csv --on path",
    "merge --on, parquet": "merge a.parquet s.csv o.parquet --on path",
    "difference": "difference a.csv b.csv o.csv",
    "intersect": "intersect a.parquet b.csv o.parquet",
    "dedupe by path": "dedupe a.csv o.csv",
    "dedupe by text": "dedupe a.csv o.csv --on text",
    "csv to parquet": "convert a.csv o.parquet",
    "parquet to csv": "convert a.parquet o.csv",
    "shard, csv": "shard a.csv o.shards",
    "shard, parquet": "shard a.parquet o.shards",
    "stats": "stats a.csv",
}
MOST_MEMORY = 1_000_000_000  # bytes resident, of any verb


def run_verb(folder: Path, what: str) -> int:
    from trainer.data.__main__ import main

    os.chdir(folder)
    args = [*VERBS[what].split(), "-q", *(["--force"] if what != "stats" else [])]
    with contextlib.redirect_stdout(io.StringIO()):
        return main(args)


def write_tables(folder: Path, rows: int) -> None:
    write(folder / "a.csv", rows)
    write(folder / "a.parquet", rows)
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context((folder / n).open("w", newline="")) for n in ("b.csv", "s.csv")
        ]
        some, scores = map(csv.writer, files)
        reader = csv.reader(stack.enter_context((folder / "a.csv").open(newline="")))
        some.writerow(next(reader))
        scores.writerow(["path", "score", "note"])
        for number, row in enumerate(reader):
            if number % 2:
                some.writerow(row)
            scores.writerow([row[0], number % 97 / 7, f"n{number % 13}"])


def measure_verbs(folder: Path, rows: int, is_tiny: bool) -> None:
    write_tables(folder, rows)
    for what in VERBS:
        found = _here(what, folder) if is_tiny else _child(what, str(folder))
        assert found["rows"] == 0, what  # the exit code
        assert found["peak"] < MOST_MEMORY, what
        print(
            f"{what}, {rows:,} rows: {found['wall']:.1f} s, {found['cpu']:.1f} CPU s, "
            f"{found['peak'] / 1e6:,.0f} MB at most; load {os.getloadavg()[0]:.1f}"
        )


WORK: dict[str, Callable[[Path], int]] = {
    "read, ours": read_ours,
    "read, row by row": read_row_wise,
    "filter, ours": filter_ours,
    "filter, row by row": filter_row_wise,
}


def measure(work: Callable[[], Any]) -> dict[str, float]:
    start, wall = time.process_time(), time.perf_counter()
    count = work()
    cpu_s, wall_s = time.process_time() - start, time.perf_counter() - wall
    # VmHWM, not ru_maxrss: that one keeps the parent's peak over fork and exec.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return {"cpu": cpu_s, "wall": wall_s, "peak": peak, "rows": count}


def rank_begins(path: Path, how: str) -> dict[str, float]:
    """One rank of many before its first step: processor time and share of the memory."""
    import torch.distributed as dist

    from tests.bench.sampler import CONFIG
    from trainer.data.manifest.read import read_manifest
    from trainer.data.manifest.shared import read_once
    from trainer.data.plan.balance import Balance, classes
    from trainer.data.plan.buckets import Buckets
    from trainer.data.plan.data_plan import DataPlan, plan_once
    from trainer.engine.native import NativeEngine

    engine = NativeEngine()
    engine.setup(1, 300)
    buckets = Buckets.parse(CONFIG)
    costs = classes([c.batch_size * c.frames * c.height * c.width for c in buckets.cells])
    balance = Balance(8, costs, {0: (engine.world, 1)})
    dist.barrier()
    before = _pss()
    dist.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    manifest = read_once(engine, path)[0] if how != EACH else read_manifest(path)
    read_s = time.process_time() - cpu
    plan = DataPlan(manifest, buckets, 42, balance=balance)
    if how == ONCE:
        plan_once(engine, plan, 0)
    count = len(plan.epoch(0))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(manifest.fingerprint, plan.epoch(0).hash, file=sys.stderr)  # all of it is in use
    dist.barrier()
    memory = _pss() - before
    dist.barrier()
    engine.close()
    return {"read": read_s, "plan": cpu - read_s, "wall": wall, "memory": memory, "count": count}


def _pss() -> int:
    """Bytes of this process, shared ones divided by those who share them."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss in smaps_rollup")


def _child(*args: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.tables", "--child", *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def _here(what: str, folder: Path) -> dict[str, float]:
    """As `_child` does it, without a process for each verb: 3 s in all."""
    before = Path.cwd()
    try:
        return measure(lambda: run_verb(folder, what))
    finally:
        os.chdir(before)


def compare_rows(folder: Path, rows: int) -> None:
    for suffix in (".csv", ".parquet"):
        path = folder / f"clips{suffix}"
        write(path, rows)
        for what in ("read", "filter"):
            ours, naive = (_child(f"{what}, {how}", str(path)) for how in ("ours", "row by row"))
            assert ours["rows"] == naive["rows"]
            print(
                f"{what} {rows:,} rows of {suffix[1:]}: {ours['cpu']:.2f} CPU s and "
                f"{ours['peak'] / 1e6:,.0f} MB at most; row by row {naive['cpu']:.2f} s, "
                f"{naive['peak'] / 1e6:,.0f} MB: "
                f"{naive['cpu'] / ours['cpu']:.1f} times the time; load {os.getloadavg()[0]:.1f}"
            )


def compare_ranks(folder: Path, rows: int, ranks: int) -> None:
    path = folder / "many.parquet"
    write(path, rows)
    for how in (EACH, READ, ONCE):
        port = free_port()
        found = forked.results(
            rank_begins, [path, how], [environment(rank, ranks, port) for rank in range(ranks)]
        )
        assert len({one["count"] for one in found}) == 1
        print(
            f"{ranks} ranks, {rows:,} rows of {path.stat().st_size / 1e6:,.0f} MB, {how}: "
            f"{sum(one['read'] for one in found):.1f} CPU s to read and "
            f"{sum(one['plan'] for one in found):.1f} to plan, "
            f"{max(one['wall'] for one in found):.1f} s, "
            f"{sum(one['memory'] for one in found) / 1e6:,.0f} MB of the machine; "
            f"load {os.getloadavg()[0]:.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--verb-rows", type=int, default=1_300_000)
    parser.add_argument("--shared-rows", type=int, default=1_300_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = tiny.parse(parser, rows=500, verb_rows=500, shared_rows=500, ranks=2)
    if args.child is not None:
        what, path = args.child[0], Path(args.child[1])
        work = WORK.get(what) or (lambda folder: run_verb(folder, what))
        print(json.dumps(measure(lambda: work(path))))
        return 0
    with tempfile.TemporaryDirectory() as name:
        compare_rows(Path(name), args.rows)
        measure_verbs(Path(name), args.verb_rows, args.tiny)
        compare_ranks(Path(name), args.shared_rows, args.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
