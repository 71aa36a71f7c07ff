"""Whether every shape of a run fits on its card, asked before the first step.

A shape that does not fit as configured recomputes more blocks. One that does not fit even so ends
the run before it begins, instead of in its 4,000th step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

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
from trainer.models.activation_checkpointing import Size
from trainer.models.memory import card_bytes
from trainer.models.peak import State, predicted_peak

# Of a card: for errors of the prediction (10 % in the tests), fragments, and NCCL's buffers.
RESERVE_SHARE = 0.1
_PIXEL_BYTES = 9  # as a byte, in fp32, and once more frame by frame
_SHOWN = 6  # buckets of a kind in one line


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

    def bytes(self, bucket: Bucket, batch: int, blocks: int) -> int:
        """Of a step over `batch` clips of a bucket whose first `blocks` at least run twice."""
        model, latent = self.parts.model, latent_of(self.parts, bucket)
        setting = replace(model.grad_checkpoint, at_least={latent: blocks})
        peak = predicted_peak(
            model,
            batch,
            latent,
            state=self.state,
            device=self.device,
            dtype=self.dtype,
            checkpoint=setting,
            masked=self.masked,
        )
        pixels = batch * bucket.frames * bucket.height * bucket.width * 3
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
    blocks = engine.together(lambda: recomputed(_rank(config, engine, parts), buckets, limit))
    latents: dict[Size, int] = {}
    for bucket, count in blocks.items():
        latent = latent_of(parts, bucket)
        latents[latent] = max(count, latents.get(latent, 0))
    model = parts.model
    model.grad_checkpoint = replace(model.grad_checkpoint, at_least=latents)
    if blocks:
        named = {bucket.name: count for bucket, count in blocks.items()}
        journal.event("memory", _more(blocks, 2 * model.config.depth, limit), blocks=named)


def recomputed(rank: Rank, buckets: Iterable[Bucket], limit: int) -> dict[Bucket, int]:
    """How many first blocks must be recomputed, where the setting is not enough.

    Raises OutOfMemory when a bucket takes more than `limit` bytes with all blocks recomputed.
    """
    every, found, too_large = 2 * rank.parts.model.config.depth, {}, {}
    for bucket in buckets:
        if rank.bytes(bucket, bucket.batch_size, 0) <= limit:
            continue

        def fits(count: int, bucket: Bucket = bucket) -> bool:
            return rank.bytes(bucket, bucket.batch_size, count) <= limit

        if fits(every):
            found[bucket] = _least(fits, every)
        else:
            too_large[bucket] = rank.bytes(bucket, bucket.batch_size, every)
    if too_large:
        raise _refused(rank, too_large, limit)
    return found


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
    return Rank(parts, state, dtype, engine.device.type, masked, weights, max(known, default=0))


def _weight_bytes(network: Any) -> int:
    if not isinstance(network, nn.Module):
        return 0
    return sum(p.numel() * p.element_size() for p in (*network.parameters(), *network.buffers()))


def _least(is_enough: Callable[[int], bool], most: int) -> int:
    """The smallest count from 1 to `most` that is enough; `most` is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _more(blocks: dict[Bucket, int], every: int, limit: int) -> str:
    lines: dict[str, list[int]] = {}
    for bucket, count in blocks.items():
        lines.setdefault(f"{bucket.resolution} {bucket.frames}f", []).append(count)
    shown = ", ".join(f"{name} {_span(counts)}" for name, counts in list(lines.items())[:_SHOWN])
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return (
        f"{len(blocks)} bucket shapes do not fit into {_gb(limit)} as grad_checkpoint says; "
        f"recomputed of {every} blocks: {shown}{more}"
    )


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _refused(rank: Rank, too_large: dict[Bucket, int], limit: int) -> OutOfMemory:
    bucket, needed = max(too_large.items(), key=lambda item: item[1])
    every = 2 * rank.parts.model.config.depth
    batch = bucket.batch_size
    while batch and rank.bytes(bucket, batch, every) > limit:
        batch -= 1
    lines = {(other.resolution, other.frames) for other in too_large}
    others = f"; {len(lines) - 1} more lines of bucket_config do not fit" if len(lines) > 1 else ""
    fits = f"a batch of {batch} would fit" if batch else "not even one clip would fit"
    text = (
        f"bucket {bucket.name} needs {_gb(needed)} for {bucket.batch_size} clips with every block "
        f"recomputed, and the smallest card has {_gb(limit)} for a rank: {fits}{others}"
    )
    where = f"bucket_config[{bucket.resolution!r}][{bucket.frames}]"
    change = f"a batch size of {batch} in {where}" if batch else f"close {where}: (0.0, None)"
    other = "" if rank.parts.model.offload else ", offload_activations = True"
    ways = f"{change}{other}, or more ranks; grad_checkpoint alone does not help"
    return OutOfMemory(text, hint=ways)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
