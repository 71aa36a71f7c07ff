"""What a microbatch of a bucket costs, so that those which share a step cost alike.

By arithmetic: matrix products of text encoder, VAE and transformer, each at the share of an
accelerator's peak that it is known to reach. Or timed at the start of a run, shared over the ranks.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from trainer.components import Parts
from trainer.data.plan.buckets import Bucket
from trainer.engine.base import Engine
from trainer.models.flops import forward_flops
from trainer.models.stdit_config import STDiT3Config
from trainer.models.vae.interface import to_signed
from trainer.runlog.atomic_file import write_whole

# B clips · C channels · T,H,W frames, height, width
# Of the bf16 peak: estimates for Open-Sora's XL/2 on H100; only their ratio matters.
TEXT_SHARE, VAE_SHARE, MODEL_SHARE = 0.5, 0.3, 0.4
_REPEATS = 2  # timed runs of a bucket after one that warms up; the quicker one counts
COSTS = "costs.json"  # in the run directory
T5_XXL = 4_617_000_000  # weights of its encoder that every token is multiplied with


def peak_seconds(
    bucket: Bucket,
    model: STDiT3Config,
    latent_size: Callable[[tuple[int, int, int]], tuple[int, int, int]],
    vae_flops: Callable[[int, int, int], float],
    text_weights: int,
    *,
    recompute: bool,
) -> float:
    """Seconds of one microbatch on an accelerator of 1 FLOP/s peak; 0 for a batch size of 0."""
    clips, tokens = bucket.batch_size, model.model_max_length
    if not clips:
        return 0.0
    size = (bucket.frames, bucket.height, bucket.width)
    passes = 4 if recompute else 3  # with the backward pass
    text, vae = 2.0 * text_weights * tokens * clips, vae_flops(*size) * clips
    dit = float(passes * forward_flops(model, clips, *latent_size(size), tokens))
    return text / TEXT_SHARE + vae / VAE_SHARE + dit / MODEL_SHARE


def costs_by_arithmetic(buckets: Iterable[Bucket], parts: Parts, recompute: bool) -> list[float]:
    """Relative costs, one of each bucket."""
    vae_flops = open_sora_vae_flops if isinstance(parts.vae, nn.Module) else no_flops
    fixed = (parts.model.config, parts.vae.latent_size, vae_flops, matrix_weights(parts.text))
    return [peak_seconds(bucket, *fixed, recompute=recompute) for bucket in buckets]


def costs_by_timing(
    buckets: list[Bucket], present: list[int], parts: Parts, engine: Engine, recompute: bool
) -> list[float]:
    """Seconds of a microbatch of each bucket: measured for those `present`, others by arithmetic.
    One aspect ratio of each resolution and length is measured, its others scale with their FLOP.
    Collective. A rank times its share of the buckets where a forward pass involves no other
    rank."""
    measured = {(buckets[cell].resolution, buckets[cell].frames): cell for cell in present[::-1]}
    first = sorted(measured.values())
    mine = first[engine.rank :: engine.world] if engine.forward_is_local else first
    passes = 4 if recompute else 3
    timed = {cell: _timed(buckets[cell], parts, engine, passes) for cell in mine}
    seconds = {cell: s for part in engine.gather_objects(timed) for cell, s in part.items()}
    estimates = costs_by_arithmetic(buckets, parts, recompute)
    priced = {kind: cell for kind, cell in measured.items() if estimates[cell]}
    scales = {kind: seconds[cell] / estimates[cell] for kind, cell in priced.items()}
    median = sorted(scales.values())[len(scales) // 2] if scales else 1.0
    return [
        estimate * scales.get((bucket.resolution, bucket.frames), median)
        for bucket, estimate in zip(buckets, estimates, strict=True)
    ]


@torch.no_grad()
def _timed(bucket: Bucket, parts: Parts, engine: Engine, passes: int) -> float:
    device = engine.device
    shape = (bucket.batch_size, 3, bucket.frames, bucket.height, bucket.width)
    video = torch.zeros(shape, dtype=torch.uint8, device=device)
    number = torch.ones(bucket.batch_size, device=device)
    found = []
    for _ in range(1 + _REPEATS):
        start = now(device)
        z_BCTHW = parts.vae.encode(to_signed(video))
        y, mask = parts.text.encode([""] * bucket.batch_size)
        middle = now(device)
        height, width = number * bucket.height, number * bucket.width
        sizes = {"fps": number * 24, "height": height, "width": width}
        # The mask on the host, as a step has it: what attends to text depends on that.
        engine.module(z_BCTHW, number * 500, y=y.to(device), mask=mask, **sizes)
        found.append(middle - start + passes * (now(device) - middle))
    return min(found[1:])


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def matrix_weights(text: object) -> int:
    """Weights of a text encoder that each token is multiplied with: matrices but the embeddings."""
    encoder = getattr(text, "model", text)
    if not isinstance(encoder, nn.Module):
        return 0
    tables = {id(part.weight) for part in encoder.modules() if isinstance(part, nn.Embedding)}
    return sum(p.numel() for p in encoder.parameters() if p.dim() == 2 and id(p) not in tables)


def no_flops(_frames: int, _height: int, _width: int) -> float:
    return 0.0


def latent_size(vae_type: str, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """(T, H, W) of a video's latent: the video's own, or Open-Sora 1.2's; builds no VAE."""
    if vae_type == "identity":
        return size
    chunks, rest = divmod(size[0], 17)
    return 5 * chunks + -(-rest // 4), size[1] // 8, size[2] // 8


def write_costs(
    run_dir: Path,
    cells: Sequence[Bucket],
    how: str,
    found: Sequence[int],
    costs: Sequence[float] | None = None,
) -> None:
    """costs.json: what a microbatch of each bucket was taken to cost, and which count as alike.
    `how` is flops (relative numbers), timed (seconds) or checkpoint (its classes, no numbers)."""
    sizes = ("height", "width", "batch_size")
    table = [
        {"bucket": cell.name, **{n: getattr(cell, n) for n in sizes}, "cost": cost, "class": kind}
        for cell, cost, kind in itertools.zip_longest(cells, costs or [], found)
    ]
    document = {"schema": 1, "how": how, "unit": "s" if how == "timed" else None, "buckets": table}
    write_whole(run_dir / COSTS, json.dumps(document, indent=1) + "\n")


def open_sora_vae_flops(frames: int, height: int, width: int) -> float:
    """FLOP to encode a clip by Open-Sora 1.2's VAE: each frame by SDXL's, then 17-frame chunks."""
    places = (height // 8) * (width // 8)
    temporal = sum(_temporal_products(min(17, frames - start)) for start in range(0, frames, 17))
    return 2.0 * (frames * _spatial_products(height, width) + temporal * places)


def _spatial_products(height: int, width: int) -> float:
    """SDXL's encoder: 3x3 convolutions, 4 levels of 2 residual blocks, a middle, 8 channels out."""
    area, before = float(height * width), 128
    products = area * 9 * 3 * 128
    for level, channels in enumerate((128, 256, 512, 512)):
        products += area * 9 * (before * channels + 3 * channels * channels)
        products += area * before * channels * (before != channels)
        before = channels
        if level < 3:
            area /= 4
            products += area * 9 * channels * channels
    attention = area * 4 * 512 * 512 + 2 * area * area * 512
    return products + area * 9 * 4 * 512 * 512 + attention + area * 9 * 512 * 8


def _temporal_products(frames: int) -> float:
    """Products for each latent place: 3x3x3 convolutions, time halved behind stages 2 and 3."""
    length, before = float(frames + -frames % 4), 128
    products = length * 27 * 4 * before  # conv_in
    for stage, channels in enumerate((128, 256, 256, 512, 512), 1):
        products += length * (27 * before + 7 * 27 * channels) * channels
        products += length * before * channels * (before != channels)
        if stage in (2, 3):
            length /= 2
            products += length * 27 * channels * channels
        before = channels
    return products + length * 512 * 8
