"""Warm-up and whole steps of XL/2 on the null GPU, as JSON.

python -m tests.gpu.null.programs.steps OUT.json [--lines 360p:51,...] [--every-shape] WORDS

WORDS are those of a run (--engine native --fused-blocks false).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.gpu.null import counters
from tests.gpu.null.kinds import by_kind
from tests.gpu.null.programs.compilers import Compilers
from tests.gpu.null.programs.training import assembled, batch_of, bucket_of, buckets, leave, lines
from trainer import fits
from trainer.allocator import use_expandable_segments
from trainer.bench.shapes import Shape
from trainer.data.plan.buckets import Bucket
from trainer.step import Run, step


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lines", default="all", help="names with commas, all or none")
    parser.add_argument("--warm", default="all", help="lines of stage 1, as --lines")
    parser.add_argument("--every-shape", action="store_true", help="once, behind the warm-up")
    args, words = parser.parse_known_args()
    use_expandable_segments(os.environ)
    made = Compilers()
    run = assembled(Path(tempfile.mkdtemp(dir=args.out.parent)), words)
    found: dict[str, Any] = {"warm-up": warmed(run, made, args.warm.split(","))}
    if args.every_shape:
        found["every shape"] = every_shape(run, made)
    wanted = args.lines.split(",")
    chosen = {
        name: shape for name, shape in lines().items() if "all" in wanted or shape.name in wanted
    }
    cells = [bucket_of(shape) for shape in chosen.values()]
    fit(run, cells)
    assert run.warm_up is not None
    run.warm_up.run(cells)  # those of other stages, as a run of theirs does
    if chosen:  # what the first step of a run makes: the optimizer's state
        step(run, iter([batch_of(next(iter(chosen.values())))]))
    found["steps"] = {name: steps(run, shape, made) for name, shape in chosen.items()}
    found["devices"], found["refusal"] = counters.own().devices_used(), counters.own().refusal
    leave(args.out, found)


def warmed(run: Run, made: Compilers, names: list[str]) -> dict[str, Any]:
    """The run's own warm-up for buckets of stage 1."""
    assert run.warm_up is not None
    wanted = [
        one
        for one in buckets("stage1")
        if "all" in names or f"{one.resolution}:{one.frames}" in names
    ]
    before, begin = made.counts(), time.perf_counter()
    result = run.warm_up.run(wanted)
    assert result is not None
    seconds = time.perf_counter() - begin
    return {"shapes": result.shapes, "all": result.all_shapes, "seconds": seconds} | made.since(
        before
    )


def every_shape(run: Run, made: Compilers) -> dict[str, Any]:
    """A pass over each shape of stage 1, both with and without frame masks: what it still makes."""
    warm_up = run.warm_up
    assert warm_up is not None
    shapes = {
        (one.batch_size, warm_up._latent_size((one.frames, one.height, one.width))): one
        for one in buckets("stage1")
    }
    twin, begin, late = warm_up._twin(), made.counts(), []
    for shape, bucket in shapes.items():
        before, inputs = made.counts(), warm_up._batch(*shape, bucket)
        for masked in (False, True):
            warm_up._pass(twin, *inputs, masked)
        if made.since(before)["programs"] or made.since(before)["graphs"]:
            late.append(f"{bucket.name} x {bucket.batch_size}")
    del twin
    torch.cuda.empty_cache()
    return {"shapes": len(shapes), "late": late, **made.since(begin)}


def fit(run: Run, cells: list[Bucket]) -> None:
    """What the run decides before its first step, for these buckets."""
    numbers = np.arange(len(cells))
    known = SimpleNamespace(cells=cells, reachable=lambda manifest, interval: (numbers, numbers))
    plan: Any = SimpleNamespace(buckets=known, manifest=None, frame_interval=1)
    fits.fit_buckets(run.config, run.engine, run.parts, plan, run.journal)


def predicted(run: Run, bucket: Bucket, masked: bool) -> int:
    """Bytes of a step as it was decided, of the most clips that pass at once."""
    setting, latent = run.parts.model.grad_checkpoint, fits.latent_of(run.parts, bucket)
    spans = setting.spans(bucket.batch_size, latent)
    clips = max(span.stop - span.start for span in spans)
    rank = replace(fits._rank(run.config, run.engine, run.parts), masked=masked)
    return rank.bytes(bucket, clips, setting.at_least.get(latent, 0))


def steps(run: Run, shape: Shape, made: Compilers) -> dict[str, Any]:
    """A step of a line: what it launches, waits for, makes and holds."""
    run.step = 1  # no step whose weights are measured, which launches more
    batch, before = batch_of(shape), made.counts()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    counters.reset()
    given: list[bool] = []  # of each pass: whether some frames are
    hook = run.parts.model.register_forward_pre_hook(
        lambda module, args, named: given.append(named.get("x_mask") is not None), with_kwargs=True
    )
    begin = time.perf_counter()
    step(run, iter([batch]))
    own, seconds = counters.own(), time.perf_counter() - begin
    hook.remove()
    return {
        "launches": own.launches,
        "waits": own.waits,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "predicted_bytes": predicted(run, bucket_of(shape), any(given)),
        "host_s": seconds,
        "passes": len(given),
        "given": any(given),
        "kernels": by_kind(counters.kernels()),
        **made.since(before),
    }


if __name__ == "__main__":
    main()
