"""The loader of a run, and the one that reads a feature cache instead of decoding clips."""

# B clips · C channels · Z,h,w latent frames, height, width · L tokens

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config.keys import DatasetConfig
from trainer.data.features.cache import Features, Shards
from trainer.data.loader import microbatch
from trainer.data.loader.loader import Loader, Worker
from trainer.data.loader.microbatch import Batch, Failures, Replacing, of_first_bucket
from trainer.data.loader.task import Clip, Task
from trainer.data.plan.data_plan import Cursor, DataPlan
from trainer.models.vae.interface import Posterior


@dataclass(eq=False)
class FeatureLoader(Loader):
    """A Loader whose batches have `latents`, `y` and `mask` instead of `video`."""

    features: Features = field(kw_only=True)

    def stand_in(self) -> Batch:
        """As `Loader.stand_in`, with latents of zeros and a caption of one token."""
        batch, features = super().stand_in(), self.features
        assert batch.video is not None
        frames, height, width = batch.video.shape[2:]
        size = features.grid.latent_size((frames, height, width))
        batch.video = None
        batch.latents = torch.zeros(1, features.copies, features.grid.channels, *size)
        batch.y = torch.zeros(1, 1, features.max_tokens, features.text_channels)
        batch.mask = torch.zeros(1, features.max_tokens, dtype=torch.int64)
        batch.mask[:, 0] = 1
        return batch

    def _worker(self, role: str) -> Worker:
        shards, ids = self.features.shards(), self.plan.content_ids
        make = partial(read_batch, features=self.features, shards=shards, ids=ids)
        return Worker(self.options, role, make, shards.close)


def build_loader(
    plan: DataPlan,
    cursor: Cursor,
    rank: int,
    world: int,
    workers: int,
    options: DatasetConfig | None = None,
    *,
    each: int = 1,
    prefetch_factor: int | None = None,
    features: Features | None = None,
) -> Loader:
    """Batches for one rank from `cursor` on; `each` for each step, none short, none skipped.
    `workers` decoding processes, at least one; with `features` nothing is decoded, see
    `read_batch`. Raises TooFewClips when no epoch holds even one step; iterating raises
    TooManyBadSamples and LoaderError."""
    place = (plan, cursor, rank, world, workers, options or DatasetConfig(), each, prefetch_factor)
    loader = Loader(*place) if features is None else FeatureLoader(*place, features=features)
    loader.next_place()
    return loader


def read_batch(
    task: Task, features: Features, shards: Shards, ids: NDArray[np.uint64], pin: bool = False
) -> Batch:
    """One microbatch. Clips that could not be encoded are replaced, as `assemble` does. Raises
    FeaturesError for what is missing or damaged, TooManyBadSamples when no clip was encoded."""
    start_s, failures = time.thread_time(), Failures()
    batch = of_first_bucket(task, partial(_read, features, shards, ids, failures), failures)
    assert batch.latents is not None
    assert batch.y is not None
    if pin:
        batch.latents, batch.y = batch.latents.pin_memory(), batch.y.pin_memory()
    batch.decode_s = time.thread_time() - start_s
    return batch


def _read(
    features: Features, shards: Shards, ids: NDArray[np.uint64], failures: Failures, task: Task
) -> Batch | None:
    """None where no clip of the task or of its spares was encoded."""
    bucket, replacing = task.bucket, Replacing(task, failures)
    found: dict[int, tuple[Tensor, float]] = {}
    places = list(range(len(task.clips)))
    while places:
        failed: dict[int, tuple[str, bool]] = {}
        for place in places:
            clip = replacing.chosen[place]
            clip_id = int(ids[clip.row])
            reason = features.bad.get((clip_id, bucket.height, bucket.width))
            if reason is None:
                window = (bucket.frames, clip.start, task.interval)
                stored = shards.window(clip_id, bucket.height, bucket.width, *window)
                if stored is None:
                    at = f"{bucket.height}x{bucket.width} for {bucket.frames} frames"
                    raise features.lacks(f"{clip.path} at {at}")
                latent, file_fps = stored
                if rate := microbatch.frame_rate(clip, file_fps, task):
                    found[place] = latent, rate
                    continue
            failed[place] = (reason or microbatch.NO_RATE, True)
        places = replacing.replace(failed)
    filled = replacing.fill()
    if filled.is_empty:
        return None
    latents, rates = zip(*(found[source] for source in filled.sources), strict=True)
    y, mask = _captions(replacing.chosen, features, shards)
    where, fps = (task.epoch, task.index), torch.tensor(rates, dtype=torch.float32)
    parts = {"latents": torch.stack(latents), "y": y, "mask": mask}
    return Batch.of(bucket, where, replacing.chosen, fps, **parts)


def _captions(clips: Sequence[Clip], features: Features, shards: Shards) -> tuple[Tensor, Tensor]:
    parts = []
    for clip in clips:
        if (part := shards.text(clip.text)) is None:
            raise features.lacks(f"the caption of {clip.path} ({clip.text[:60]!r})")
        parts.append(part)
    rows, length = len(parts), features.max_tokens
    y = torch.zeros(rows, 1, length, features.text_channels, dtype=parts[0].dtype)
    mask = torch.zeros(rows, length, dtype=torch.int64)
    for row, part in enumerate(parts):
        y[row, 0, : len(part)] = part
        mask[row, : len(part)] = 1
    return y, mask


def latents_of(stored_BPCZHW: Tensor) -> Tensor:
    """Latent fp32 [B, C, Z, h, w]: a draw, by torch's own generator, of two numbers."""
    values = stored_BPCZHW.float()
    if values.shape[1] == 1:
        return values[:, 0]
    return Posterior(values[:, 0], values[:, 1]).sample()


class NoVAE:
    """Takes the place of the VAE in a run from features; knows the sizes of latents."""

    def __init__(self, features: Features) -> None:
        self.out_channels = features.grid.channels
        self.latent_size = features.grid.latent_size

    def encode(self, video_BCTHW: Tensor, generator: Any = None) -> Tensor:
        """Zeros: what is timed at a run's start is the step without a VAE."""
        _, _, frames, height, width = video_BCTHW.shape
        size = self.latent_size((frames, height, width))
        return video_BCTHW.new_zeros(len(video_BCTHW), self.out_channels, *size)

    def to(self, device: torch.device | str) -> NoVAE:
        return self


class NoText:
    """Takes the place of the text encoder in a run from features; gives zeros."""

    def __init__(self, features: Features) -> None:
        self.channels, self.max_length = features.encoder_channels, features.max_tokens
        self._stored_channels = features.text_channels

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        y = torch.zeros(len(texts), 1, self.max_length, self._stored_channels)
        return y, torch.ones(len(texts), self.max_length, dtype=torch.int64)

    def to(self, device: torch.device | str) -> NoText:
        return self
