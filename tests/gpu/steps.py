"""Training steps of stage 1 by bucket: `trainer.bench`, and the kernels that one step spends on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.gpu.run import Item, Options

BUDGET_S = 540.0
BUCKETS = ("360p:51", "360p:102", "144p:51", "144p:1", "720p:51")
ENCODED = ("144p:1",)  # 475 images and captions: the encoders take longer than the model
RECOMPUTED, KEPT = "all", "25 GB"


def items(options: Options) -> Iterator[Item]:
    buckets = ("16px:8",) if options.tiny else BUCKETS
    for bucket in buckets:
        yield Item(f"{bucket} compiled", bench, (bucket, "--compile"), 100.0)
        yield Item(f"{bucket} eager", bench, (bucket,), 60.0)
    first = buckets[0]
    yield Item(
        f"{first} compiled, {KEPT} kept",
        bench,
        (first, "--compile", "--grad-checkpoint", KEPT),
        90.0,
    )
    yield Item(f"{first} plain, lambda", bench, (first, "--compare", "plain,lambda"), 100.0)
    tiny = ("--tiny-encoders",) if options.tiny else ()
    for bucket in (first, *(name for name in ENCODED if name in buckets)):
        yield Item(f"{bucket} encoders", bench, (bucket, "--encoders", *tiny), 90.0)
    yield Item(f"{first} kernels, eager", kernels, (first, False), 60.0)
    yield Item(f"{first} kernels, compiled", kernels, (first, True), 90.0)
    for batch in (1, 2) if options.tiny else (4, 8, 16):
        yield Item(
            f"{first} memory of batch {batch}", bench, (first, "--batch-size", str(batch)), 45.0
        )


def bench(options: Options, bucket: str, *more: str) -> dict[str, Any]:
    """Figures of `python -m trainer.bench` for one bucket, on our path first."""
    argv = [sys.executable, "-m", "trainer.bench", "demo" if options.tiny else "stage1"]
    argv += ["--bucket", bucket, "--device", options.device, "--json", "--warmup", "3"]
    argv += ["--steps", "3"]
    if "--grad-checkpoint" not in more:
        argv += ["--grad-checkpoint", RECOMPUTED]
    argv += ["--shards", "192", *more]
    done = subprocess.run(argv, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    document = json.loads(done.stdout)
    row = document["rows"][0]
    for part in (*document["rows"], *row.get("encoders", {}).values()):
        if part["result"] != "measured":
            raise RuntimeError(f"{part['result']}: {part['reason']}")
    mfu = "-" if row["mfu"] is None else f"{row['mfu']:.1%}"
    peak_gb = row["peak_bytes"] / 1e9
    headline = f"step {row['step_s']:.3f} s  {row['flops_per_s'] / 1e12:.0f} TFLOP/s  MFU {mfu}"
    headline += f"  peak {peak_gb:.1f} GB  first {row['first_s']:.1f} s"
    for path, times in row.get("faster", {}).items():
        headline += f"  {times:.2f}x {path}"
    for name, part in row.get("encoders", {}).items():
        headline += f"  {name} {part['seconds']:.3f} s ({part['share_of_step']:.0%})"
    return {"bench": document, "headline": headline}


def kernels(options: Options, bucket: str, compiled: bool) -> dict[str, Any]:
    """The 25 operations of a step that take the most time, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from trainer.bench.shapes import shapes_of
    from trainer.bench.trial import Spec, Trainee
    from trainer.config import load as configuration

    words = ["--grad-checkpoint", RECOMPUTED, "--compile", str(compiled)]
    config = configuration.load("demo" if options.tiny else "stage1", words)
    (shape,) = shapes_of(config, (bucket,))
    length = config.text_encoder.model_max_length
    spec = Spec(config, shape, options.device, length, shards=192)
    trainee = Trainee(spec, torch.device(options.device))
    for _ in range(3):
        trainee.step()
    on_gpu = options.device == "cuda"
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        trainee.step()
    rows = [
        (
            event.key,
            event.self_device_time_total if on_gpu else event.self_cpu_time_total,
            event.count,
        )
        for event in profiler.key_averages()
    ]
    rows.sort(key=lambda row: -row[1])
    total = sum(microseconds for _, microseconds, _ in rows) or 1
    table = [
        {"kernel": name, "ms": microseconds / 1e3, "share": microseconds / total, "count": count}
        for name, microseconds, count in rows[:25]
    ]
    first = table[0]
    headline = f"{total / 1e3:.0f} ms, first {first['kernel'][:40]} {first['share']:.0%}"
    return {"total_ms": total / 1e3, "kernels": table, "headline": headline}
