"""Whether every shape of a run fits on its card, asked before the first step.

With `grad_checkpoint = "auto"` a microbatch passes in as few parts as fit with nothing recomputed:
clips do not see each other, and their gradients add up. Otherwise a shape that does not fit as
configured recomputes more blocks. One that does not fit even so ends the run before it begins,
instead of in its 4,000th step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from trainer.components import Parts
from trainer.config.load import Config
from trainer.data.features.cache import NETWORK_DTYPES
from trainer.data.plan.buckets import Bucket
from trainer.data.plan.data_plan import DataPlan
from trainer.engine.base import Engine
from trainer.errors import OutOfMemory
from trainer.journal import Journal
from trainer.models.activation_checkpointing import GradCheckpoint, Size
from trainer.models.memory import card_bytes
from trainer.models.peak import Counted, State, counted, grid, predicted_peak
from trainer.runlog import units

# Of a card: for errors of the prediction (10 % in the tests), fragments, and NCCL's buffers.
RESERVE_SHARE = 0.1
_PIXEL_BYTES = 9  # as a byte, in fp32, and once more frame by frame
_SHOWN = 6  # buckets of a kind in one line
# Of a step's time, by arithmetic for XL/2 at 360p (docs/guide/gpu.md): all blocks once more, and
# one more pass, whose whole gradients are added up (22 GB of traffic, 8 ms of an H100).
_RECOMPUTED, _PASS = 0.3, 0.005
_LEAST_TOKENS = 8192  # of a pass: products over fewer rows do not fill a card


Needs = Callable[[int, int], int]  # bytes of a pass, by clips at once and blocks recomputed


class Fit(NamedTuple):
    """How a bucket passes."""

    clips: int  # at once
    blocks: int  # the first ones, recomputed in any case


@dataclass(frozen=True, slots=True)
class Rank:
    """What decides about memory beside the shape: the same on every rank."""

    parts: Parts
    state: State
    dtype: torch.dtype
    device: str  # "cuda" or "cpu": which kernels attend
    masked: bool
    encoder_bytes: int  # weights of VAE and text encoder, 0 with a feature cache
    encoding_bytes: int  # what these two take at most while they run
    values: Counted | None = None  # of the model

    def bytes(self, bucket: Bucket, batch: int, blocks: int) -> int:
        """Of a step over `batch` clips of a bucket whose first `blocks` at least run twice."""
        model, latent = self.parts.model, latent_of(self.parts, bucket)
        setting = replace(model.grad_checkpoint, at_least={latent: blocks})
        chunks = batch < bucket.batch_size
        # FSDP2 keeps whole weights where any microbatch may pass in parts.
        state = replace(self.state, chunks=chunks, keeps_whole=setting.automatic)
        peak = predicted_peak(
            model,
            batch,
            latent,
            state=state,
            device=self.device,
            dtype=self.dtype,
            checkpoint=setting,
            masked=self.masked,
            values=self.values,
        )
        # Encoded is the whole microbatch at once.
        pixels = bucket.batch_size * bucket.frames * bucket.height * bucket.width * 3
        encoding = peak.weights + peak.optimizer + self.encoding_bytes + _PIXEL_BYTES * pixels
        return self.encoder_bytes + max(peak.total, encoding if self.encoder_bytes else 0)


def fit_buckets(
    config: Config,
    engine: Engine,
    parts: Parts,
    plan: DataPlan,
    journal: Journal,
    limit_bytes: int | None = None,
) -> None:
    """Recompute more blocks where a shape needs it (collective). Raises OutOfMemory on all ranks.

    `limit_bytes` is what a rank may take; default the card's memory less a reserve, no limit on a
    CPU. All ranks decide by the smallest card.
    """
    own = usable_bytes(engine.device) if limit_bytes is None else limit_bytes
    limit = int(min(row[0] for row in engine.gather([-1.0 if own is None else float(own)])))
    if limit < 0:
        return
    cells = engine.run_on_rank0(
        lambda: np.unique(plan.buckets.reachable(plan.manifest, plan.frame_interval)[1]).tolist()
    )
    buckets = [plan.buckets.cells[cell] for cell in cells]
    found = engine.together(lambda: fitting(_rank(config, engine, parts), buckets, limit))
    model, blocks, clips = parts.model, dict[Size, int](), dict[Size, int]()
    for bucket, fit in found.items():
        latent = latent_of(parts, bucket)
        blocks[latent] = max(fit.blocks, blocks.get(latent, 0))
        clips[latent] = min(fit.clips, clips.get(latent, fit.clips))
    blocks = {latent: count for latent, count in blocks.items() if count}
    setting = replace(model.grad_checkpoint, at_least=blocks)
    model.grad_checkpoint = replace(setting, at_once=clips if setting.automatic else {})
    if any(fit.clips < bucket.batch_size for bucket, fit in found.items()):
        engine.expect_chunks()
    if found:
        data: dict[str, Any] = {"blocks": {b.name: fit.blocks for b, fit in found.items()}}
        if setting.automatic:
            data["clips"] = {b.name: fit.clips for b, fit in found.items()}
        journal.event("memory", _told(found, 2 * model.config.depth, limit, setting), **data)


def fitting(rank: Rank, buckets: Iterable[Bucket], limit: int) -> dict[Bucket, Fit]:
    """Buckets that do not pass whole, as configured: how they pass.

    Raises OutOfMemory when a bucket takes more than `limit` bytes with all blocks recomputed, under
    "auto" even clip by clip.
    """
    model = rank.parts.model
    automatic, every = model.grad_checkpoint.automatic, 2 * model.config.depth
    found, too_large = {}, {}
    for bucket in buckets:
        if rank.bytes(bucket, bucket.batch_size, 0) <= limit:
            continue
        batch, needs = bucket.batch_size, functools.partial(rank.bytes, bucket)
        if automatic:
            tokens = math.prod(grid(latent_of(rank.parts, bucket), model.config.patch_size))
            fit = cheapest(needs, batch, tokens, every, limit)
        else:
            fit = whole(needs, batch, every, limit)
        if fit is not None:
            found[bucket] = fit
        else:
            too_large[bucket] = needs(1 if automatic else batch, every)
    if too_large:
        raise _refused(rank, too_large, limit)
    return found


def whole(needs: Needs, clips: int, every: int, limit: int) -> Fit | None:
    """`clips` at once, with as few of `every` blocks recomputed as must be."""

    def fits(blocks: int) -> bool:
        return needs(clips, blocks) <= limit

    if fits(0):
        return Fit(clips, 0)
    return Fit(clips, least(fits, every)) if fits(every) else None


def cheapest(needs: Needs, batch: int, tokens: int, every: int, limit: int) -> Fit | None:
    """By the time of what is recomputed, and of passes; `tokens` are those of a clip."""
    # Fewer clips at once than the most that keep everything, or fill a card, only take longer.
    counts = {1, min(batch, -(-_LEAST_TOKENS // tokens)), batch}
    if needs(1, 0) <= limit < needs(batch, 0):
        counts.add(batch - least(lambda less: needs(batch - less, 0) <= limit, batch - 1))
    found = [whole(needs, count, every, limit) for count in counts]
    fits = [fit for fit in found if fit is not None]

    def cost(fit: Fit) -> tuple[bool, float]:
        passes, is_small = -(-batch // fit.clips), fit.clips * tokens < _LEAST_TOKENS
        share = _RECOMPUTED * fit.blocks / every
        return is_small and fit.clips < batch, _PASS * (passes - 1) + share

    return min(fits, key=cost) if fits else None


def usable_bytes(device: torch.device) -> int | None:
    """What a run may take of an accelerator; None on a CPU."""
    return int(card_bytes(device) * (1 - RESERVE_SHARE)) if device.type == "cuda" else None


def latent_of(parts: Parts, bucket: Bucket) -> Size:
    return parts.vae.latent_size((bucket.frames, bucket.height, bucket.width))


def _rank(config: Config, engine: Engine, parts: Parts) -> Rank:
    plugin = "fsdp" if config.engine == "native" else config.plugin
    bucket, each = config.reduce_bucket_size_in_m * 1024**2, config.accumulation_steps
    state = State(engine.world, plugin, bucket, accumulates=each > 1)
    networks = [parts.vae, getattr(parts.text, "model", None)]
    weights = sum(_weight_bytes(network) for network in networks)
    budgets = [getattr(part, "budget", None) for part in (parts.vae, parts.text)]
    known = [budget.bytes(engine.device) for budget in budgets if budget is not None]
    masked = bool(config.mask_ratios and any(config.mask_ratios.values()))
    dtype = NETWORK_DTYPES[config.dtype]
    encoding, values = max(known, default=0), counted(parts.model)
    return Rank(parts, state, dtype, engine.device.type, masked, weights, encoding, values)


def _weight_bytes(network: Any) -> int:
    if not isinstance(network, nn.Module):
        return 0
    return sum(p.numel() * p.element_size() for p in (*network.parameters(), *network.buffers()))


def least(is_enough: Callable[[int], bool], most: int) -> int:
    """The smallest count from 1 to `most` that is enough; `most` is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _told(found: dict[Bucket, Fit], every: int, limit: int, setting: GradCheckpoint) -> str:
    if not setting.automatic:
        return (
            f"{len(found)} bucket shapes do not fit into {units.size(limit)} as grad_checkpoint "
            f"says; recomputed of {every} blocks: {_by_line(found, lambda fit: fit.blocks)}"
        )
    recomputed = {bucket: fit for bucket, fit in found.items() if fit.blocks}
    text = f"{len(found)} bucket shapes pass in parts that fit into {units.size(limit)}"
    text += "; clips at once: " + _by_line(found, lambda fit: fit.clips)
    if recomputed:
        blocks = _by_line(recomputed, lambda fit: fit.blocks)
        text += f"; recomputed of {every} blocks: {blocks}"
    return text


def _by_line(found: dict[Bucket, Fit], number: Callable[[Fit], int]) -> str:
    """Numbers of the first lines of bucket_config."""
    lines: dict[str, list[int]] = {}
    for bucket, fit in found.items():
        lines.setdefault(f"{bucket.resolution} {bucket.frames}f", []).append(number(fit))
    shown = ", ".join(f"{name} {_span(counts)}" for name, counts in list(lines.items())[:_SHOWN])
    return shown + (f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _refused(rank: Rank, too_large: dict[Bucket, int], limit: int) -> OutOfMemory:
    bucket, needed = max(too_large.items(), key=lambda item: item[1])
    every = 2 * rank.parts.model.config.depth
    batch = bucket.batch_size
    automatic = rank.parts.model.grad_checkpoint.automatic
    while batch and rank.bytes(bucket._replace(batch_size=batch), batch, every) > limit:
        batch -= 1
    lines = {(other.resolution, other.frames) for other in too_large}
    others = f"; {len(lines) - 1} more lines of bucket_config do not fit" if len(lines) > 1 else ""
    each = ", one at a time," if automatic and bucket.batch_size > 1 else ""
    fits = f"a batch of {batch} would fit" if batch else "not even one clip would fit"
    text = (
        f"bucket {bucket.name} needs {units.size(needed)} for "
        f"{units.counted(bucket.batch_size, 'clip')}{each} with every block recomputed, "
        f"and the smallest card has {units.size(limit)} for a rank: {fits}{others}"
    )
    where = f"bucket_config[{bucket.resolution!r}][{bucket.frames}]"
    change = f"a batch size of {batch} in {where}" if batch else f"close {where}: (0.0, None)"
    other = "" if rank.parts.model.offload else ", offload_activations = True"
    ways = f"{change}{other}, or more ranks; grad_checkpoint alone does not help"
    return OutOfMemory(text, hint=ways)
