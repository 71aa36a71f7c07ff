"""What a microbatch of each bucket takes here, timed at the start and shared out over the ranks."""

# B clips · C channels · T,H,W frames, height, width

from __future__ import annotations

import time

import torch
from torch import nn

from trainer.components import Parts
from trainer.data.plan.buckets import Bucket
from trainer.data.plan.costs import costs_by_arithmetic
from trainer.data.video.pixels import to_signed
from trainer.engine.base import Engine

_REPEATS = 2  # timed runs of a bucket after one that warms up; the quicker one counts


def costs_by_timing(
    buckets: list[Bucket], present: list[int], parts: Parts, engine: Engine, recompute: bool
) -> list[float]:
    """Seconds of a microbatch of each bucket: measured for those `present`, others by arithmetic.

    One aspect ratio of each resolution and length is measured, its others scale with their FLOP.
    Collective. A rank times its share of the buckets where a forward pass involves no other rank.
    """
    measured = {(buckets[cell].resolution, buckets[cell].frames): cell for cell in present[::-1]}
    first = sorted(measured.values())
    mine = {
        cell: _timed(buckets[cell], parts, engine.module, engine.device, 4 if recompute else 3)
        for cell in (first[engine.rank :: engine.world] if engine.forward_is_local else first)
    }
    seconds = {cell: s for part in engine.gather_objects(mine) for cell, s in part.items()}
    estimates = costs_by_arithmetic(buckets, parts, recompute)
    ratios = sorted(seconds[cell] / estimates[cell] for cell in seconds if estimates[cell])
    median = ratios[len(ratios) // 2] if ratios else 1.0
    scales = {
        kind: seconds[cell] / estimates[cell] for kind, cell in measured.items() if estimates[cell]
    }
    return [
        estimate * scales.get((bucket.resolution, bucket.frames), median)
        for bucket, estimate in zip(buckets, estimates, strict=True)
    ]


@torch.no_grad()
def _timed(
    bucket: Bucket, parts: Parts, model: nn.Module, device: torch.device, passes: int
) -> float:
    shape = (bucket.batch_size, 3, bucket.frames, bucket.height, bucket.width)
    video = torch.zeros(shape, dtype=torch.uint8, device=device)
    number = torch.ones(bucket.batch_size, device=device)
    found = []
    for _ in range(1 + _REPEATS):
        start = _now(device)
        z_BCTHW = parts.vae.encode(to_signed(video))
        y, mask = parts.text.encode([""] * bucket.batch_size)
        middle = _now(device)
        height, width = number * bucket.height, number * bucket.width
        sizes = {"fps": number * 24, "height": height, "width": width}
        model(z_BCTHW, number * 500, y=y.to(device), mask=mask.to(device), **sizes)
        found.append(middle - start + passes * (_now(device) - middle))
    return min(found[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
